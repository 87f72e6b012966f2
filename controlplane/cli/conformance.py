"""`krt conformance`: whether a Runtime Server keeps the contract, for whoever writes one."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from controlplane.cli.failure import CANNOT_CONNECT, USAGE, Failure
from controlplane.cli.output import emit, say

if TYPE_CHECKING:
    from runtimes.conformance.runner import Outcome, Parts, Running

PARTS: "Final[tuple[Parts, ...]]" = ("server", "functions", "tasks")


def conformance(
    socket: Annotated[Path | None, typer.Option("--socket", help="Socket of a server that runs.")] = None,
    work_dir: Annotated[
        Path | None, typer.Option("--work-dir", help="Its work folder.  [default: the folder of the socket]")
    ] = None,
    command: Annotated[
        str, typer.Option("--command", help="Starts a server by the environment; needed where a case ends it.")
    ] = "",
    programs: Annotated[
        Path | None,
        typer.Option("--programs", help="Folder with functions/ and tasks/, one program a behaviour."),
    ] = None,
    suffix: Annotated[str, typer.Option("--suffix", help="Of a source file, such as .js.")] = ".py",
    part: Annotated[list[str] | None, typer.Option("--part", help="server, functions or tasks; repeatable.")] = None,
    only: Annotated[str, typer.Option("--only", help="A line such as C20, or a part of a case's name.")] = "",
) -> None:
    """Run the conformance suite of the Runtime contract against a server.

    \b
    Examples:
      krt conformance --socket /run/my/runtime.sock --programs ./programs --suffix .js
      krt conformance --command "node server.js" --programs ./programs --suffix .js --part functions
    """
    from runtimes.conformance import dialects, runner

    chosen = tuple(name for name in PARTS if not part or name in part)
    unknown = [name for name in part or () if name not in PARTS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(PARTS)}", param_hint="--part")
    built_in = {".py": dialects.PYTHON, ".sh": dialects.BASH}
    if programs is None and suffix not in built_in:
        raise typer.BadParameter(f"a folder with programs in {suffix} is needed", param_hint="--programs")
    if programs is not None and not any((programs / kind).is_dir() for kind in ("functions", "tasks")):
        raise typer.BadParameter(f"{programs} has no folder functions or tasks", param_hint="--programs")
    if socket is None and not command:
        raise typer.BadParameter("one of --socket and --command is needed", param_hint="--socket")
    if work_dir is not None and not work_dir.is_dir():
        raise typer.BadParameter(f"{work_dir} is no folder", param_hint="--work-dir")
    with tempfile.TemporaryDirectory(prefix="kr-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        dialect = built_in[suffix] if programs is None else dialects.Dialect("", suffix, programs)
        subject = runner.Running(
            dialect,
            socket.absolute() if socket is not None else place / "s",
            work_dir.absolute() if work_dir is not None else socket.absolute().parent if socket is not None else place,
            runner.split_command(command),
        )
        try:
            if socket is None:
                _start(subject)
            subject.await_listening()
            failed = _report(subject, chosen, only)
        except runner.NotListening as error:
            raise Failure("ServerNotListening", str(error), CANNOT_CONNECT) from error
        finally:
            subject.end()
    if failed:
        raise typer.Exit(1)


def _start(subject: "Running") -> None:
    try:
        subject.start()
    except OSError as error:
        message = f"--command: cannot start {subject.command[0]}: {error.strerror}"
        raise Failure("InvalidOption", message, USAGE) from error


def _report(subject: "Running", parts: "tuple[Parts, ...]", only: str) -> int:
    """Run it, a line for each case; how many failed, 1 when there was none to run."""
    from runtimes.conformance import runner

    def told(outcome: "Outcome") -> None:
        emit(f"{outcome.verdict:7} {outcome.lines:8} {outcome.name}" + (f": {outcome.why}" if outcome.why else ""))

    outcomes = runner.run(subject, parts=parts, only=only, told=told)
    count = Counter(outcome.verdict for outcome in outcomes)
    say(f"{count['ok']} ok, {count['failed']} failed, {count['skipped']} skipped")
    return count["failed"] or int(not outcomes)
