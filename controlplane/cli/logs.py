"""`krt logs`: what a Run's code printed, through the Kubernetes API with any kubeconfig credential."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from controlplane.cli.failure import OTHER, USAGE, Failure, printable
from controlplane.cli.options import ContextOption, KubeconfigOption, NamespaceOption, RunName, run_name
from controlplane.cli.output import say
from controlplane.cli.plain import LOGS_API, runs_path
from controlplane.cli.progress import Patience
from controlplane.cli.session import Session
from controlplane.kube.errors import Unavailable

if TYPE_CHECKING:
    from controlplane.kube.client import KubeClient

TAIL_MAX_LINES: Final = 500  # the API's bound
IDLE_S: Final = 300.0  # a stream that is silent for so long is asked for again, from where it ended


class Line(msgspec.Struct, frozen=True):
    """One line that user code printed, or (without `stream`) the cursor behind what came so far, or a note of what is
    missing. `invocation` is empty for a task and for what is printed while importing."""

    time: str = ""
    stream: str = ""
    invocation: str | None = None
    attempt: int = 0
    line: str = ""
    cursor: str = ""
    note: str = ""


_decode = msgspec.json.Decoder(Line).decode


def logs(
    name: RunName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the Run has ended.")] = False,
    invocation: Annotated[
        str | None, typer.Option("--invocation", help="Only of the call with this id.", metavar="ID")
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", help="Only the last lines, at most 500; -1: all.", metavar="LINES")
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Time, stream and call before each line.")] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Show what a Run's code printed.

    \b
    Examples:
      krt logs summarize-once
      krt logs diagnose-service -f --tail 20
      krt logs diagnose-service --invocation ID --timestamps
    """
    if tail is not None and not -1 <= tail <= TAIL_MAX_LINES:
        raise Failure("InvalidOption", f"--tail takes 0 to {TAIL_MAX_LINES}, or -1", USAGE)
    if invocation == "":
        raise Failure("InvalidOption", "--invocation: an empty id", USAGE)
    session, name = Session(namespace, context, kubeconfig), run_name(name)
    path = runs_path(session.namespace, name, api=LOGS_API, subresource="log")
    query = {"invocation": invocation} if invocation else {}
    query |= {"tailLines": str(tail)} if tail is not None and tail > 0 else {}
    printer = _Printer(timestamps)

    if tail == 0 or not follow:
        printer.print(session.api.ask("GET", path, query=query, accept="*/*"), shown=tail != 0)
    if follow:
        session.call(lambda client: _follow(client, path, query, printer))
    if invocation and tail != 0 and not printer.lines:
        say(f"the log of Run {name} has no line of invocation {printable(invocation)}")


async def _follow(client: "KubeClient", path: str, query: dict[str, str], printer: "_Printer") -> None:
    """Lines until the Run has ended. Where the stream breaks it is asked for again from the last cursor on."""
    patience, answered = Patience(), False
    while True:
        asked = query | {"follow": "true"}
        if printer.cursor:
            asked = {key: value for key, value in asked.items() if key != "tailLines"} | {"cursor": printer.cursor}
        try:
            async for raw in client.stream(path, query=asked, idle_seconds=IDLE_S):
                answered = True
                patience.answered()
                printer.print(raw)
                sys.stdout.flush()
            return
        except Unavailable as error:
            if not answered or not printer.cursor:
                raise
            await patience.bear(error)


class _Printer:
    """Writes the lines of answers to stdout and keeps the last cursor."""

    def __init__(self, timestamps: bool) -> None:
        self.cursor = ""
        self.lines = 0
        self._timestamps = timestamps

    def print(self, raw: bytes, *, shown: bool = True) -> None:
        """Lines of ndjson; with `shown` false only their cursor counts."""
        lines = []
        for one in raw.split(b"\n"):
            if not one.strip():
                continue
            try:
                line = _decode(one)
            except msgspec.MsgspecError as error:
                raise Failure("LogInvalid", f"the API answered with what is no log line: {error}", OTHER) from error
            self.cursor = line.cursor or self.cursor
            if line.note and shown:
                say(f"note: {line.note}")
            if line.stream and shown:
                head = f"{line.time} {line.stream} {line.invocation or '-'} " if self._timestamps else ""
                lines.append(f"{head}{line.line}\n")
        self.lines += len(lines)
        sys.stdout.write("".join(lines))
