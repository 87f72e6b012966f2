"""`krt token` and `krt kubeconfig`: credentials for curl and other clients."""

from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.failure import NOT_FOUND, OTHER, USAGE, Failure
from controlplane.cli.https import credential_headers
from controlplane.cli.output import emit
from controlplane.cli.session import ContextOption, KubeconfigOption, NamespaceOption, Session, data_directory
from controlplane.kube.codec import parse_duration_ms

if TYPE_CHECKING:
    from controlplane.kube.client import KubeClient

AUDIENCE = "kruntimes"


def token(
    service_account: Annotated[
        str | None, typer.Option("--serviceaccount", help="A token of this ServiceAccount instead, for the gateway.")
    ] = None,
    duration: Annotated[str, typer.Option("--duration", help="How long that token lives.")] = "1h",
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Print a bearer token for curl.

    \b
    Example:
      curl -H "Authorization: Bearer $(krt token)" …
    """
    session = Session(namespace, context, kubeconfig)
    if service_account is not None:
        try:
            seconds = parse_duration_ms(duration) // 1000
        except ValueError as error:
            raise Failure("InvalidOption", f"--duration: {error}", USAGE) from error
        account = service_account

        async def work(client: "KubeClient") -> str:
            answer = await client.create_token(
                session.namespace, account, audiences=(AUDIENCE,), expiration_seconds=seconds
            )
            return answer.token

        emit(session.call(work))
        return
    header = credential_headers(session.access()).get("Authorization", "")
    kind, _, value = header.partition(" ")
    if kind != "Bearer":
        message = "the kubeconfig's user has a client certificate and no token; name one with --serviceaccount"
        raise Failure("NoToken", message, OTHER)
    emit(value)


def kubeconfig(
    path: Annotated[bool, typer.Option("--path", help="Print where it is instead of its content.")] = False,
) -> None:
    """Print the kubeconfig of the running `krt up`.

    \b
    Example:
      export KUBECONFIG=$(krt kubeconfig --path)
    """
    found = data_directory() / "kubeconfig"
    try:
        content = found.read_text()
    except OSError as error:
        raise Failure(
            "NotRunning", f"{found} cannot be read ({error.strerror}); start one with `krt up`", NOT_FOUND
        ) from error
    emit(str(found) if path else content.rstrip())
