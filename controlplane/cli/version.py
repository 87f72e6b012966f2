"""`krt version`: of this program and of the server it would talk to."""

from importlib.metadata import version as distribution_version
from typing import Annotated

import typer

from controlplane.cli.failure import failure_of
from controlplane.cli.options import ContextOption, Format, KubeconfigOption, OutputOption
from controlplane.cli.output import emit, print_object, say
from controlplane.cli.session import Session
from controlplane.kube.errors import malformed
from statemachine.journal import RULES_VERSION


def version(
    client_only: Annotated[bool, typer.Option("--client", help="Do not ask a server.")] = False,
    output: OutputOption = Format.TABLE,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Show the versions of client and server.

    \b
    Example:
      krt version --client
    """
    facts: dict[str, str] = {"client": distribution_version("kruntimes"), "rules": str(RULES_VERSION)}
    problem = None
    if not client_only:
        try:
            facts["server"] = _server(Session(None, context, kubeconfig))
        except Exception as error:  # the client's own version is told all the same
            problem = failure_of(error)
    if output in (Format.JSON, Format.YAML):
        print_object(facts, output)
    else:
        for name, value in facts.items():
            emit(f"{name}: {value}")
    if problem is not None and output in (Format.JSON, Format.YAML):
        raise problem
    if problem is not None:
        say(f"note: no server answers: {problem.line()}")


def _server(session: Session) -> str:
    found = session.api.get("/version")
    if not isinstance(found, dict) or "gitVersion" not in found:
        raise malformed("GET /version: the answer is no version")
    return str(found["gitVersion"])
