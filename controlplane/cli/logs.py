"""`krt logs`: what a Run's code printed, through the Kubernetes API with any kubeconfig credential."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from controlplane.cli.failure import OTHER, USAGE, Failure
from controlplane.cli.output import emit
from controlplane.cli.session import ContextOption, KubeconfigOption, NamespaceOption, Session

if TYPE_CHECKING:
    from controlplane.kube.client import KubeClient

TAIL_MAX_LINES: Final = 500  # the API's bound
IDLE_S: Final = 3600.0  # a log that says nothing for an hour is looked at again by the user


class Line(msgspec.Struct, frozen=True):
    """One line that user code printed. `invocation` is empty for a task and for what is printed while importing."""

    time: str = ""
    stream: str = ""
    invocation: str | None = None
    attempt: int = 0
    line: str = ""


def logs(
    name: Annotated[str, typer.Argument(help="Name of the Run.", show_default=False)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are printed.")] = False,
    invocation: Annotated[str | None, typer.Option("--invocation", help="Only of the call with this id.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", help="Only the last lines, at most 500.")] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Time, stream and call before each line.")] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Show what a Run's code printed.

    \b
    Examples:
      krt logs summarize-once
      krt logs diagnose-service -f
      krt logs diagnose-service --invocation ID
    """
    if tail is not None and not 1 <= tail <= TAIL_MAX_LINES:
        raise Failure("InvalidOption", f"--tail takes 1 to {TAIL_MAX_LINES}", USAGE)
    session = Session(namespace, context, kubeconfig)
    path = f"/apis/logs.kruntimes.io/v1alpha1/namespaces/{session.namespace}/runs/{name}/log"
    query = {"follow": "true"} if follow else {}
    query |= {"invocation": invocation} if invocation else {}
    query |= {"tailLines": str(tail)} if tail else {}

    async def work(client: "KubeClient") -> None:
        if follow:
            async for raw in client.stream(path, query=query, idle_seconds=IDLE_S):
                _print(raw, timestamps)
        else:
            for raw in (await client.raw("GET", path, query=query)).splitlines():
                _print(raw, timestamps)

    session.call(work)


def _print(raw: bytes, timestamps: bool) -> None:
    if not raw.strip():
        return
    try:
        line: Any = msgspec.json.decode(raw, type=Line)
    except msgspec.MsgspecError as error:
        raise Failure("LogInvalid", f"the API answered with what is no log line: {error}", OTHER) from error
    if timestamps:
        emit(f"{line.time} {line.stream} {line.invocation or '-'} {line.line}")
    elif line.stream:
        emit(line.line)
