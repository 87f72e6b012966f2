"""Carries out the control plane's commands at the Kubernetes API. Only `loop` calls it.

Each command is conditional (L11) and idempotent: whatever has been done already fails its test, or changes nothing.
"""

from typing import Any, Protocol

from controlplane.kube.api import Kube
from controlplane.kube.patches import finalizer_taken, status_patch, take_finalizer_patch
from controlplane.kube.resources import RUNS
from controlplane.kube.types import ObjectReference, RunObject
from controlplane.lean import LEAN_RUNS
from statemachine.commands import Command, DeleteRun, DropTimer, EmitEvent, PatchStatus, SetTimer, TakeFinalizer
from statemachine.run import Run


class Recorder(Protocol):
    """Records Kubernetes Events; never blocks and never raises."""

    def emit(self, about: Any, type_: str, reason: str, message: str) -> None:
        """Queue one Event about an object, or an ObjectReference. `type_` is Normal or Warning."""
        ...


class Performer:
    """Writes what `step` commands. Raises KubeError at the first write that fails; those after it are not tried."""

    def __init__(self, *, kube: Kube, recorder: Recorder) -> None:
        self._kube = kube
        self._recorder = recorder

    async def perform(self, run: Run, obj: RunObject, commands: tuple[Command, ...]) -> RunObject | None:
        """Perform what needs the API, in order. The object as the last answer showed it; None: it is gone."""
        shown: RunObject | None = obj
        for command in commands:
            match command:
                case PatchStatus():
                    ops = status_patch(run, command)
                    shown = await self._kube.json_patch(LEAN_RUNS, run.namespace, run.name, ops, subresource="status")
                case TakeFinalizer():
                    ops = take_finalizer_patch(shown, command) if shown is not None else []
                    if ops:
                        answer = await self._kube.json_patch(LEAN_RUNS, run.namespace, run.name, ops)
                        shown = finalizer_taken(answer)
                case DeleteRun():
                    await self._kube.delete(RUNS, run.namespace, run.name, uid=run.uid, propagation="Background")
                case SetTimer() | DropTimer() | EmitEvent():
                    pass  # the loop's own
                case _:
                    raise AssertionError(f"{type(command).__name__} is for runtimed to perform")
        return shown

    def emit(self, run: Run, command: EmitEvent) -> None:
        """Record an Event on the Run."""
        about = ObjectReference(
            api_version=RUNS.api_version, kind=RUNS.kind, namespace=run.namespace, name=run.name, uid=run.uid
        )
        self._recorder.emit(about, "Warning" if command.warning else "Normal", command.reason.value, command.message)
