"""From a claimed Run to a registered function or a started task: source on disk, then the Runtime Server.

Here: what the user's code gets (folder, environment, arguments), once per epoch. A failure is a PreparationFailed with
its reason. A lost connection is not one: the same epoch is sent again, and the server does nothing twice (R1).
Next: `worker.py` runs it in the background.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from controlplane.kube.types import RunObject
from dataplane.runtimed import source
from dataplane.runtimed.failures import PreparationFailed, ServerLost
from dataplane.runtimed.server_link import ServerLink, wire_epoch
from dataplane.runtimed.workdir import WorkDir
from runtimes.contract import messages as m
from statemachine.reasons import Reason
from statemachine.run import Epoch

LOAD_MIN_S: Final = 1.0  # what a load gets at least, however long the source took; the registration timer ends it


class Preparation:
    """Shared by all Runs of the Pod; it keeps nothing. `git_options` are those of `git.checkout`."""

    def __init__(self, link: ServerLink, workdir: WorkDir, **git_options: Any) -> None:
        self._link = link
        self._workdir = workdir
        self._git_options = git_options

    async def register(self, run: RunObject, epoch: Epoch, *, idle_timeout_ms: int | None, timeout: float) -> str:
        """Prepare the source and load the function within `timeout` seconds; its registration id.

        Raises PreparationFailed, EpochClosed, or ServerLost when the server's process died of it.
        """
        function = run.spec.mode.function
        assert function is not None, "only a function is registered"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        directory = self._workdir.source(epoch.run_uid, epoch.attempt)
        await self._materialise(run, epoch)
        env = environment(run, epoch)
        digest = m.register_digest(
            epoch=wire_epoch(epoch),
            handler=function.handler,
            env=env,
            idle_timeout_ms=idle_timeout_ms,
            concurrency=function.concurrency,
        )
        request = m.RegisterRequest(
            epoch=wire_epoch(epoch),
            directory=str(directory),
            handler=function.handler,
            digest=digest,
            env=env,
            idle_timeout_ms=idle_timeout_ms,
            concurrency=function.concurrency,
        )
        instance = await self._link.until_up()
        while True:
            try:
                return await self._link.register(request, timeout=max(LOAD_MIN_S, deadline - loop.time()))
            except ServerLost:
                if await self._link.settled() != instance:
                    raise

    async def execute(self, run: RunObject, epoch: Epoch, *, may_dispatch: Callable[[], bool]) -> bool:
        """Prepare the source and start the task. False: `may_dispatch` said no, and nothing was sent.

        `may_dispatch` is asked immediately before the hand-over, and a yes is remembered as one. Raises as `register`.
        """
        directory = self._workdir.source(epoch.run_uid, epoch.attempt)
        await self._materialise(run, epoch)
        instance = await self._link.until_up()
        if not may_dispatch():
            return False
        env = environment(run, epoch)
        entrypoint = source.entrypoint(run, self._default_script())
        args = tuple(run.spec.mode.task.args) if run.spec.mode.task is not None else ()
        request = m.ExecuteTaskRequest(
            epoch=wire_epoch(epoch),
            directory=str(directory),
            entrypoint=entrypoint,
            digest=m.task_digest(epoch=wire_epoch(epoch), entrypoint=entrypoint, args=args, env=env),
            args=args,
            env=env,
        )
        while True:
            try:
                await self._link.execute(request)
                return True
            except ServerLost:
                if await self._link.settled() != instance:
                    raise

    async def _materialise(self, run: RunObject, epoch: Epoch) -> None:
        directory = self._workdir.source(epoch.run_uid, epoch.attempt)
        try:
            await source.materialise(source.of_run(run, self._default_script()), directory, **self._git_options)
        except OSError as error:
            raise PreparationFailed(Reason.SOURCE_FETCH_FAILED, f"the source cannot be written: {error}") from error

    def _default_script(self) -> str:
        return self._link.hello.default_script if self._link.hello is not None else "main"


def environment(run: RunObject, epoch: Epoch) -> dict[str, str]:
    """What the user's code finds beside the Runtime Server's own variables (R8); `spec.env` may set any of them."""
    return {
        "KRUNTIME_NAMESPACE": run.metadata.namespace,
        "KRUNTIME_RUNTIME": run.spec.runtime,
        "KRUNTIME_RUN_NAME": run.metadata.name,
        "KRUNTIME_RUN_UID": epoch.run_uid,
        "KRUNTIME_ATTEMPT": str(epoch.attempt),
        **{variable.name: variable.value for variable in run.spec.env},
    }
