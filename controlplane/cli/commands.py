"""The commands of `krt`: their names, and each one's module imported only when it is the one that runs.

Lives here: the list, and how a command line becomes a call. May not live here: what a command does. `main` calls `run`.
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from controlplane.cli import lifetime
from controlplane.cli.arguments import as_click_reads, plain_flag, plain_values
from controlplane.cli.failure import USAGE, Failure

# name -> (module, function, the first line of its help); `--help` lists these without importing any of them
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "up": ("up", "up", "Run the whole system on this machine."),
    "down": ("up", "down", "Stop a detached one."),
    "status": ("up", "status", "Show what runs on this machine, and how well."),
    "run": ("create", "run", "Create a Run."),
    "invoke": ("invoke", "invoke", "Call a function."),
    "get": ("queries", "get", "Show Runs, by name or all of them."),
    "list": ("queries", "list_runs", "List Runs."),
    "wait": ("waiting", "wait", "Wait until Runs are Ready, in a phase, finished or gone."),
    "cancel": ("ending", "cancel", "Ask for the end of Runs; the objects stay, as Cancelled."),
    "delete": ("ending", "delete", "Delete Runs; functions are released first."),
    "logs": ("logs", "logs", "Show what a Run's code printed."),
    "explain": ("explain", "explain", "Say why a Run is in its phase, and what it waits for."),
    "replay": ("journals", "replay", "Fold a Run's journal again and compare."),
    "diagram": ("journals", "diagram", "Draw the lifecycle, with a Run's path."),
    "token": ("access", "token", "Print a bearer token for curl."),
    "kubeconfig": ("access", "kubeconfig", "Print the kubeconfig of the running krt up."),
    "conformance": ("conformance", "conformance", "Judge a Runtime Server by the contract."),
    "version": ("version", "version", "Show the versions of client and server."),
    "completion": ("completion", "completion", "Print the completion script of a shell."),
}

COMPLETE_VAR: Final = "_KRT_COMPLETE"  # set by the completion script of a shell

_HELP: Final = """Functions on warm Runtimes, invoked in milliseconds.

\b
  krt up                                     start everything on this machine
  krt run -f run.yaml --wait                 create a Run and follow it
  krt invoke NAME -d '{"key": "value"}'      call it

\b
With -o json an error is a Status object on stderr.
Exit codes: 0 done, 1 other, 2 usage, 3 not found, 4 not authenticated or not
allowed, 5 not ready, 6 too many, 7 the function failed, 8 timed out,
9 cannot connect or outcome unknown.
"""
_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


class _Command(TyperCommand):
    """One command; it reads `--flag=false` and `-x=value` as kubectl does, and `-o json` where it prints no object."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        return super().parse_args(ctx, as_click_reads(self.params, args))

    def get_help_option(self, ctx: Any) -> Any:
        return plain_flag(super().get_help_option(ctx))


class _Lazy(TyperGroup):
    """Commands that are imported when they are asked for; a list of them needs no import."""

    def get_help_option(self, ctx: Any) -> Any:
        return plain_flag(super().get_help_option(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name != ctx.meta.get("asked"):
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name][2])
        return load(cmd_name, self.rich_markup_mode)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.commands: Any = dict.fromkeys(COMMANDS)  # for "did you mean"
        ctx.meta["asked"] = args[0]
        return super().resolve_command(ctx, args)


def load(name: str, markup: Any = None) -> Any:
    """Import one command, ready to be parsed for and invoked."""
    module, function, _ = COMMANDS[name]
    callback: Callable[..., Any] = getattr(importlib.import_module(f"controlplane.cli.{module}"), function)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=markup)
    app.command(name, cls=_Command, context_settings=_SETTINGS)(callback)
    command = typer.main.get_command(app)
    plain_values(command.params, callback)
    return command


def run(args: Sequence[str]) -> int:
    """Run one command line. Raises what the command raises; a wrong command line is a Failure with exit code 2."""
    group = _Lazy(name="krt", help=_HELP, rich_markup_mode=_markup(), context_settings=_SETTINGS)
    if os.environ.get(COMPLETE_VAR):
        from controlplane.cli.completion import answer

        return answer(group, COMPLETE_VAR)
    try:
        with group.make_context("krt", _spelled(args)) as ctx:
            group.invoke(ctx)
    except typer.Exit as end:
        return int(end.exit_code)
    except typer.Abort as abort:
        raise KeyboardInterrupt from abort
    except (OSError, Failure):
        raise
    except Exception as error:
        if (usage := _usage(error)) is None:
            raise
        raise usage from error
    finally:
        lifetime.end()
    return 0


def _spelled(args: Sequence[str]) -> list[str]:
    """`krt` alone shows its help, `krt help NAME` is `krt NAME --help`, `krt --version` is `krt version --client`."""
    if not args:
        return ["--help"]
    if args[0] == "--version":
        return ["version", "--client", *args[1:]]
    return [*args[1:], "--help"] if args[0] == "help" else list(args)


def _usage(error: Exception) -> Failure | None:
    """What the parser says of a command line that it cannot read, in one line; None for anything else."""
    words = getattr(error, "format_message", None)
    if words is None:
        return None
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "krt"
    return Failure("InvalidUsage", f"{str(words()).rstrip('.')}; see {path} --help", USAGE)


def _markup() -> Any:
    """Help is drawn with boxes and colours on a terminal, and is plain text elsewhere: less to read, and 50 ms less."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return "rich" if sys.stdout.isatty() and not plain else None
