"""`krt version`: of this program and of the server it would talk to."""

from importlib.metadata import version as distribution_version
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from controlplane.cli.failure import Failure
from controlplane.cli.output import Format, OutputOption, emit, print_object, say
from controlplane.cli.session import ContextOption, KubeconfigOption, Session
from controlplane.kube.errors import KubeError
from statemachine.journal import RULES_VERSION

if TYPE_CHECKING:
    from controlplane.kube.client import KubeClient


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
    facts = {"client": distribution_version("kruntimes"), "rules": str(RULES_VERSION)}
    if not client_only:
        try:
            facts["server"] = _server(Session(None, context, kubeconfig))
        except (Failure, KubeError) as error:
            say(f"note: no server answers: {error}")
    if output in (Format.JSON, Format.YAML):
        print_object(facts, output)
        return
    for name, value in facts.items():
        emit(f"{name}: {value}")


def _server(session: Session) -> str:
    async def work(client: "KubeClient") -> str:
        found: dict[str, str] = msgspec.json.decode(await client.raw("GET", "/version"), type=dict[str, str])
        return found["gitVersion"]

    return session.call(work)
