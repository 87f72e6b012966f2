"""The node's process: configuration in, signals to a stop, exit code out. It only wires; `node.Node` holds the parts.

The supervisor runs `main` next.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import uvloop

from controlplane.embedded.node.addresses import AddressPool
from controlplane.embedded.node.config import ConfigInvalid, NodeConfig, validate
from controlplane.embedded.node.context import NodeContext
from controlplane.embedded.node.filewatch import FileWatcher
from controlplane.embedded.node.hosttoken import keep_gateway_token
from controlplane.embedded.node.machine import register
from controlplane.embedded.node.node import Node
from controlplane.embedded.node.spawner import SpawnerClient, SupervisorGone
from controlplane.kube.client import KubeClient
from controlplane.kube.clock import SystemClock
from controlplane.kube.events import EventRecorder
from runtimes.contract import jsonlog

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run the node until SIGTERM (containers stay, a next node adopts them) or the supervisor's Shutdown (they end)."""
    jsonlog.setup("node")
    if sys.argv[1:] if argv is None else argv:
        _log.error("the node takes no arguments: it is configured by its environment")
        return 2
    try:
        config = validate(os.environ if environ is None else environ)
    except ConfigInvalid as error:
        _log.error("%s", error)
        return 2
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(config))


async def _run(config: NodeConfig) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with await KubeClient.connect(config.kubeconfig, user_agent="kruntimes-node") as kube:
        clock = SystemClock()
        events = EventRecorder(kube, "kruntimes-node", clock, instance=config.node_name)
        with (
            contextlib.closing(SpawnerClient(config.spawner_fd)) as spawner,
            contextlib.closing(FileWatcher()) as watcher,
        ):
            node = Node(
                NodeContext(
                    kube=kube,
                    spawner=spawner,
                    clock=clock,
                    addresses=AddressPool(config.pod_network),
                    watch=watcher.watch,
                    note=events.emit,
                    node_name=config.node_name,
                    data_dir=config.data_dir,
                    run_dir=config.run_dir,
                    machine=config.machine,
                )
            )

            async def work() -> None:
                async with asyncio.TaskGroup() as group:
                    group.create_task(node.run())
                    group.create_task(spawner.run(node.on_report))
                    group.create_task(events.run())
                    group.create_task(register(kube, clock, config.node_name))
                    group.create_task(keep_gateway_token(kube, config.data_dir))

            return await _until_over(asyncio.ensure_future(work()), stop, node.over)


async def _until_over(work: "asyncio.Future[None]", *ends: asyncio.Event) -> int:
    """0 once one of `ends` is set; else what `work` ended with."""
    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(end.wait()) for end in ends]
    await asyncio.wait([work, *waits], return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if any(end.is_set() for end in ends):
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return 0
    try:
        await work
    except* SupervisorGone:
        _log.warning("the supervisor is gone")
    return 1
