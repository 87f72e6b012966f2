"""One Pod on this node: an actor that brings its containers to life, keeps them so, and ends them in order.

Lives here: the loop of one Pod (look, act, write the status) and its reactions to reports, probes and deletion.
May not live here: which Pods there are (`pods` makes these actors, next). State changes are synchronous; only the
actor's own task awaits, so there is never more than one write of a Pod's status in flight.
"""

import asyncio
import contextlib
import logging
import math
import random
import signal
from pathlib import Path
from typing import assert_never

import msgspec

from controlplane.embedded import spawning
from controlplane.embedded.node import environment, images, probes
from controlplane.embedded.node.addresses import NoAddress
from controlplane.embedded.node.context import NodeContext
from controlplane.embedded.node.limits import (
    SETUP_RETRY_FIRST_SECONDS,
    SETUP_RETRY_MAX_SECONDS,
    SOCKET_PATH_MAX_BYTES,
    STATUS_MESSAGE_MAX_CHARS,
    WRITE_RETRY_FIRST_SECONDS,
    WRITE_RETRY_MAX_SECONDS,
)
from controlplane.embedded.node.lives import End, Life, State, lives_of, may_start
from controlplane.embedded.node.podprobes import PodProbes
from controlplane.embedded.node.podstatus import HOST_IP, status_of
from controlplane.embedded.node.references import resolve
from controlplane.embedded.node.stopping import Stopping
from controlplane.embedded.node.volumes import Volumes, VolumeUnavailable
from controlplane.kube.backoff import Backoff
from controlplane.kube.errors import Conflict, Invalid, KubeError, NotFound
from controlplane.kube.resources import PODS
from controlplane.kube.types import Pod, PodStatus

_log = logging.getLogger(__name__)


class PodActor:
    """Runs one Pod until it is gone. `observe`, `vanish`, `report` and `shut_down` tell it what happened."""

    def __init__(self, context: NodeContext, pod: Pod) -> None:
        self._context = context
        self._pod = pod
        self._uid = pod.metadata.uid
        self._folder = context.data_dir / "pods" / self._uid
        self._links = context.run_dir / self._uid
        self._volumes = Volumes(context.kube, context.clock, self._folder)
        self._lives = lives_of(pod)
        self._ip = ""
        self._ip_wish = pod.status.pod_ip
        self._is_set_up = False
        self._next_set_up_at = 0.0
        self._written: PodStatus = pod.status
        self._wake = asyncio.Event()
        self._vanished = False
        self._stopping: Stopping | None = None
        self._probes = PodProbes(
            volumes=self._volumes.path,
            socket_volumes=self._links,
            watch=context.watch,
            signal=context.spawner.signal,
            on_ready=self._set_ready,
            on_dead=self._dead,
        )
        self._set_up_backoff = Backoff(SETUP_RETRY_FIRST_SECONDS, SETUP_RETRY_MAX_SECONDS, random.Random())
        self._write_backoff = Backoff(WRITE_RETRY_FIRST_SECONDS, WRITE_RETRY_MAX_SECONDS, random.Random())

    # What happened

    def restore(self, running: dict[str, spawning.Started], ended: dict[str, spawning.Exited]) -> None:
        """Take up a Pod of an earlier node: adopt what runs, count what ended."""
        statuses = {
            s.name: s for s in (*self._pod.status.init_container_statuses, *self._pod.status.container_statuses)
        }
        for life in self._lives:
            if (status := statuses.get(life.container.name)) is not None:
                life.restore(status, self._context.clock.now_us())
            prefix = f"{self._uid}/{life.container.name}/"
            for started in (report for id, report in running.items() if id.startswith(prefix)):
                life.adopt(int(started.id[len(prefix) :]), started.pid, started.at_us)
            for exited in (report for id, report in ended.items() if id.startswith(prefix)):
                if not life.lives and int(exited.id[len(prefix) :]) >= life.run:
                    life.run = int(exited.id[len(prefix) :])
                    life.ended(End(exited.code, exited.started_us, exited.finished_us), self._context.clock.monotonic())
                self._context.spawner.forget(exited.id)
            if not life.lives:
                life.restart_at_once()
        adopted = [life for life in self._lives if life.lives]
        if adopted and self._context.addresses.keep(self._ip_wish):
            self._ip = self._ip_wish
        for life in adopted:
            self._probes.attach(life)

    def observe(self, pod: Pod) -> None:
        """The API shows the Pod like this now."""
        self._pod = pod
        if pod.metadata.deleting:
            self._stop(pod)
        self._wake.set()

    def vanish(self) -> None:
        """The API has the Pod no more: end everything at once."""
        self._vanished = True
        self._wake.set()

    def shut_down(self, grace_seconds: float) -> None:
        """The machine stops: end the containers; the Pod stays in the API."""
        deadline = self._context.clock.monotonic() + grace_seconds
        if self._stopping is None:
            self._stopping = Stopping(deadline, all_at_once=True)
        self._stopping.sooner(deadline)
        self._wake.set()

    def report(self, report: spawning.Started | spawning.Exited | spawning.Refused) -> None:
        """The supervisor said this about a process of this Pod."""
        life = next((life for life in self._lives if life.id == report.id), None)
        match report:
            case spawning.Started():
                if life is not None and life.state is State.STARTING:
                    life.started(report.pid, report.at_us)
                    self._probes.attach(life)
            case spawning.Exited():
                if life is not None and life.lives:
                    self._probes.detach(life)
                    end = End(report.code, report.started_us, report.finished_us)
                    life.ended(end, self._context.clock.monotonic())
                    _log.info("container ended", extra=self._extra(life) | {"code": report.code})
                    if self._stopping is None and report.code != 0 and life.state is State.ENDED:
                        text = f"container {life.container.name} ended with {report.code}, it is restarted"
                        self._context.note(self._pod, "Warning", "BackOff", text)
                self._context.spawner.forget(report.id)
            case spawning.Refused():
                if life is not None and life.state is State.STARTING:
                    life.refused("RunContainerError", report.message, self._context.clock.monotonic())
            case _:
                assert_never(report)
        self._wake.set()

    # The loop

    async def run(self) -> None:
        """Until the Pod is gone, or its containers are after `shut_down`."""
        if self._pod.metadata.deleting:
            self._stop(self._pod)
        while True:
            self._wake.clear()
            try:
                if await self._step():
                    return
                delay = self._next_due() - self._context.clock.monotonic()
            except KubeError as error:
                delay = self._write_backoff.next_delay()
                _log.warning("pod %s: %s, trying again", self._pod.metadata.name, error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if math.isinf(delay) else max(0.0, delay)):
                    await self._wake.wait()

    async def _step(self) -> bool:
        """One look. True when there is nothing left to do for ever."""
        if self._vanished:
            for life in self._lives:
                if life.lives:
                    self._context.spawner.signal(life.id, signal.SIGKILL)
            return self._clean_up_if_over()
        if self._stopping is not None:
            return await self._step_to_the_end(self._stopping)
        if self._written.phase in ("Succeeded", "Failed") and not any(life.lives for life in self._lives):
            self._next_set_up_at = math.inf
            return False
        if self._written.conditions and not self._is_set_up:
            await self._write_status()  # of an earlier life: say first that nothing is ready
        if not self._is_set_up or self._next_set_up_at <= self._context.clock.monotonic():
            await self._set_up()
        if self._is_set_up:
            await self._start_due()
            self._end_sidecars_without_work()
        await self._write_status()
        return False

    async def _step_to_the_end(self, stopping: Stopping) -> bool:
        for id, number in stopping.signals(self._lives, self._context.clock.monotonic()):
            self._context.spawner.signal(id, number)
        over = not any(life.lives for life in self._lives)
        await self._write_status(halted=over, over=over and self._pod.metadata.deleting)
        if not over:
            return False
        if not self._pod.metadata.deleting:
            return True
        with contextlib.suppress(NotFound, Conflict):
            await self._context.kube.delete(
                PODS, self._pod.metadata.namespace, self._pod.metadata.name, uid=self._uid, grace_seconds=0
            )
        self._vanished = True
        return self._clean_up_if_over()

    def _next_due(self) -> float:
        if self._vanished:
            return math.inf
        if self._stopping is not None:
            return self._stopping.next_due(self._lives)
        due = [self._next_set_up_at]
        if self._is_set_up:
            due += [life.next_start_at for life in self._lives if life.state in (State.WAITING, State.ENDED)
                    and may_start(self._lives, self._lives.index(life))]  # fmt: skip
        return min(due)

    # Starting

    async def _set_up(self) -> None:
        """Address, volumes and the short path to sockets; again later if something is missing, or to renew tokens."""
        now = self._context.clock.monotonic
        try:
            if not self._ip:
                containers = (*self._pod.spec.init_containers, *self._pod.spec.containers)
                ports = [port.container_port for container in containers for port in container.ports]
                self._ip = self._context.addresses.take(ports, self._ip_wish)
            renew_at = await self._volumes.fill(self._pod, self._ip)
            _link(self._links, self._volumes.path)
            self._is_set_up = True
            self._next_set_up_at = math.inf if renew_at is None else renew_at
            self._set_up_backoff.reset()
        except (VolumeUnavailable, NoAddress, OSError, KubeError) as error:
            self._next_set_up_at = now() + self._set_up_backoff.next_delay()
            for life in self._lives:
                if not self._is_set_up and life.state in (State.WAITING, State.ENDED):
                    life.waiting_reason, life.waiting_message = "ContainerCreating", str(error)
            _log.info("pod %s waits: %s", self._pod.metadata.name, error)

    async def _start_due(self) -> None:
        for index, life in enumerate(self._lives):
            if life.due(self._context.clock.monotonic()) and may_start(self._lives, index):
                await self._start(life)

    async def _start(self, life: Life) -> None:
        image = images.find(life.container.image)
        now = self._context.clock.monotonic()
        if image is None:
            message = images.unknown_message(life.container.image)
            life.refused("ErrImageNeverPull", message, now)
            life.next_start_at = math.inf
            self._context.note(self._pod, "Warning", "ErrImageNeverPull", message)
            return
        try:
            env = environment.variables(
                self._pod,
                life.container,
                image,
                ip=self._ip,
                host_ip=HOST_IP,
                volumes=self._volumes.path,
                socket_volumes=self._links,
                machine=self._context.machine,
                referenced=await resolve(self._context.kube, self._pod.metadata.namespace, life.container),
            )
            _check_socket(env)
            if image.journal:
                env["KRUNTIMES_JOURNAL_DIR"] = str(self._context.data_dir / "journal")
            if (file := probes.ready_file(life.container, self._volumes.path)) is not None:
                file.unlink(missing_ok=True)  # what an earlier run left says nothing about this one
            life.starting()
            log = self._folder / "logs" / f"{life.container.name}.log"
            self._context.spawner.spawn(spawning.Spawn(life.id, image.target, env, str(log), image.title))
            _log.info("container starts", extra=self._extra(life))
        except (environment.UnresolvedVariable, spawning.MessageTooLong, OSError) as error:
            life.refused("CreateContainerConfigError", str(error), now)

    def _end_sidecars_without_work(self) -> None:
        """A Pod whose containers are all done keeps no sidecars."""
        if all(life.state is State.DONE for life in self._lives if not life.init):
            for life in self._lives:
                if life.sidecar:
                    life.policy = "Never"
                    if life.lives:
                        self._context.spawner.signal(life.id, signal.SIGTERM)
                    elif life.state is State.ENDED:
                        life.state = State.DONE

    def _set_ready(self, life: Life, ready: bool) -> None:
        life.ready = ready
        self._wake.set()

    def _dead(self, life: Life, problem: str) -> None:
        self._context.note(self._pod, "Warning", "Unhealthy", problem)
        _log.warning("container is not alive: %s", problem, extra=self._extra(life))

    # The end

    def _stop(self, pod: Pod) -> None:
        deadline = self._context.clock.monotonic() + Stopping.grace_left(pod, self._context.clock.now_us())
        if self._stopping is None:
            self._stopping = Stopping(deadline)
        self._stopping.sooner(deadline)

    def _clean_up_if_over(self) -> bool:
        if any(life.lives for life in self._lives):
            return False
        for life in self._lives:
            self._probes.detach(life)
        self._context.addresses.give_back(self._ip)
        with contextlib.suppress(OSError):
            self._links.unlink(missing_ok=True)
        self._volumes.remove()
        return True

    async def _write_status(self, *, halted: bool = False, over: bool = False) -> None:
        status = status_of(
            self._written,
            self._lives,
            ip=self._ip,
            now_us=self._context.clock.now_us(),
            stopping=self._stopping is not None,
            halted=halted,
            over=over,
        )
        if status == self._written:
            return
        ops = [
            {"op": "test", "path": "/metadata/uid", "value": self._uid},
            {"op": "add", "path": "/status", "value": msgspec.to_builtins(status)},
        ]
        try:
            meta = self._pod.metadata
            await self._context.kube.json_patch(PODS, meta.namespace, meta.name, ops, subresource="status")
        except (NotFound, Invalid) as error:
            _log.info("pod %s: status not taken: %s", self._pod.metadata.name, error)  # gone, or another of that name
        self._written = status
        self._write_backoff.reset()

    def _extra(self, life: Life) -> dict[str, object]:
        meta = self._pod.metadata
        return {"pod": f"{meta.namespace}/{meta.name}", "container": life.container.name, "restart": life.run}


def _link(link: Path, target: Path) -> None:
    """`link` leads to `target`, as a short path to sockets."""
    if not (link.is_symlink() and link.readlink() == target):
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _check_socket(env: dict[str, str]) -> None:
    path = env.get(environment.SOCKET_VARIABLE, "")
    if len(path.encode()) > SOCKET_PATH_MAX_BYTES:
        raise environment.UnresolvedVariable(
            f"the socket path {path[:STATUS_MESSAGE_MAX_CHARS]} is longer than {SOCKET_PATH_MAX_BYTES} bytes"
        )
