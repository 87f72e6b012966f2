"""How a task ended, from the Runtime Server's words into the lifecycle's. Pure. Next: `jobs.py`."""

from collections.abc import Sequence
from typing import Final

from runtimes.contract import messages as m
from runtimes.contract.limits import ARTIFACT_REFS_MAX_COUNT
from statemachine.reasons import Reason
from statemachine.run import ArtifactRef, TaskResult

MESSAGE_STDERR_MAX_BYTES: Final = 800  # of the stderr tail: status.message holds 1,024

Exit = m.TaskResult


def result(exited: Exit, stored: Sequence[m.ArtifactRef] = ()) -> TaskResult:
    """What goes into the status, in the same patch as the phase; `stored`: what it left in its artifacts folder."""
    return TaskResult(
        exit_code=exited.exit_code,
        outputs=tuple(exited.outputs.items()),
        artifact_refs=tuple(
            ArtifactRef(ref.name, ref.uri, ref.size_bytes, ref.digest or None)
            for ref in (*stored, *exited.artifact_refs)
        )[:ARTIFACT_REFS_MAX_COUNT],
    )


def failure(exited: Exit) -> tuple[Reason | None, str]:
    """Why the task failed, None when it did not, and the sentence for the status."""
    if exited.exit_code != 0:
        tail = exited.stderr_tail.encode()[-MESSAGE_STDERR_MAX_BYTES:].decode(errors="replace").strip()
        said = f"the task ended with status {exited.exit_code}"
        return Reason.TASK_FAILED, f"{said}: {tail}" if tail else said
    if exited.outputs_error:
        return Reason.OUTPUTS_INVALID, exited.outputs_error
    return None, ""
