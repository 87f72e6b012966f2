"""`krt completion`, and the answers that the scripts it prints ask for: commands, options, and names of Runs.

A shell waits while this runs, so nothing here may take long, print anything else, or fail.
"""

import os
import sys
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from controlplane.cli.output import emit

ANSWER_TIMEOUT_S: Final = 2.0  # a shell that waits longer for a Tab feels dead
NAMES_MAX: Final = 500


class Shell(StrEnum):
    """Shells with a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.", metavar="SHELL")]) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      source <(krt completion bash)
      krt completion zsh > "${fpath[1]}/_krt"
      krt completion fish > ~/.config/fish/completions/krt.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    from controlplane.cli.commands import COMPLETE_VAR

    emit(get_completion_script(prog_name="krt", complete_var=COMPLETE_VAR, shell=shell.value))


def answer(group: Any, variable: str) -> int:
    """Answer the script of a shell, which says in the environment what has been typed."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()
    try:
        group.main(args=[], prog_name="krt", complete_var=variable)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except Exception:  # half a command line need not parse
        return 0
    return 0


def run_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of Runs of the namespace that the command line means, as far as an API says them at once."""
    muted, sys.stderr = sys.stderr, open(os.devnull, "w")  # noqa: PTH123, SIM115 - a message would tear the prompt
    try:
        given = set(ctx.params.get("names") or ())
        return [name for name in _names(ctx) if name.startswith(incomplete) and name not in given]
    except Exception:
        return []
    finally:
        sys.stderr.close()
        sys.stderr = muted


def _names(ctx: typer.Context) -> list[str]:
    from controlplane.cli.plain import METADATA_ACCEPT, runs_path
    from controlplane.cli.session import Session

    session = Session(ctx.params.get("namespace"), ctx.params.get("context"), ctx.params.get("kubeconfig"))
    found = session.api.get(
        runs_path(session.namespace),
        query={"limit": str(NAMES_MAX)},
        accept=METADATA_ACCEPT,
        timeout=ANSWER_TIMEOUT_S,
    )
    return [item["metadata"]["name"] for item in found.get("items", ())]
