"""The `krt` command, assembled: each command is imported only when it is the one that runs.

`main` is the entry point of the distribution. It turns every expected failure into one line and an exit code, so that a
user's mistake never shows a traceback.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from controlplane.cli.failure import OTHER, Failure, from_kube

# name -> (module, function, the first line of its help); `--help` lists these without importing any of them
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "up": ("up", "up", "Run the whole system on this machine."),
    "down": ("up", "down", "Stop a detached one."),
    "status": ("up", "status", "Show what runs on this machine, and how well."),
    "run": ("create", "run", "Create a Run."),
    "invoke": ("invoke", "invoke", "Call a function."),
    "get": ("queries", "get", "Show Runs by name."),
    "list": ("queries", "list_runs", "List Runs."),
    "wait": ("queries", "wait", "Wait until a Run is Ready, in a phase, finished or gone."),
    "cancel": ("queries", "cancel", "Ask for the end of Runs; the objects stay."),
    "delete": ("queries", "delete", "Delete Runs; functions are released first."),
    "logs": ("logs", "logs", "Show what a Run's code printed."),
    "explain": ("journals", "explain", "Say why a Run is in its phase and what it waits for."),
    "replay": ("journals", "replay", "Fold a Run's journal again and compare."),
    "diagram": ("journals", "diagram", "Draw the lifecycle, with a Run's path."),
    "token": ("access", "token", "Print a bearer token for curl."),
    "kubeconfig": ("access", "kubeconfig", "Print the kubeconfig of the running krt up."),
    "version": ("version", "version", "Show the versions of client and server."),
}

_HELP: Final = """Functions on warm Runtimes, invoked in milliseconds.

  krt up                                     start everything on this machine
  krt run -f run.yaml --wait                 create a Run and follow it
  krt invoke NAME -d '{"key": "value"}'      call it
"""


INTERRUPTED: Final = 130  # as shells say it: 128 + SIGINT


class _Lazy(TyperGroup):
    """Commands that are imported when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, function, summary = COMMANDS[cmd_name]
        if ctx.resilient_parsing or not _asked_for(cmd_name):
            return TyperCommand(cmd_name, help=summary)
        callback = getattr(importlib.import_module(f"controlplane.cli.{module}"), function)
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        app.command(cmd_name)(callback)
        return typer.main.get_command(app)


def _asked_for(name: str) -> bool:
    return name in sys.argv[1:]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    from controlplane.kube.errors import KubeError

    args = list(sys.argv[1:] if argv is None else argv)
    group = _Lazy(name="krt", help=_HELP, no_args_is_help=True)
    try:
        group.main(args=args, prog_name="krt")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return OTHER
    except KubeError as error:
        return _fail(from_kube(error), args)
    except Failure as failure:
        return _fail(failure, args)
    return 0


def _fail(failure: Failure, args: Sequence[str]) -> int:
    if _wants_json(args):
        sys.stderr.buffer.write(failure.as_status() + b"\n")
    else:
        sys.stderr.write(failure.line() + "\n")
    sys.stderr.flush()
    return failure.code


def _wants_json(args: Sequence[str]) -> bool:
    following: Any = dict(zip(args, [*args[1:], ""], strict=False))
    return "json" in (following.get("-o"), following.get("--output")) or "-ojson" in args or "--output=json" in args


if __name__ == "__main__":
    sys.exit(main())
