"""`krt token` and `krt kubeconfig`: credentials for curl and other clients."""

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from controlplane.cli.failure import NOT_FOUND, OTHER, USAGE, Failure
from controlplane.cli.options import (
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    run_name,
    seconds_of,
)
from controlplane.cli.output import emit, say
from controlplane.cli.plain import decoded
from controlplane.cli.session import Session, data_directory, running


def token(
    service_account: Annotated[
        str | None,
        typer.Option("--serviceaccount", help="A new token of this ServiceAccount instead.", metavar="NAME"),
    ] = None,
    duration: Annotated[
        str, typer.Option("--duration", help="How long that token lives, at least 10m.", metavar="DURATION")
    ] = "1h",
    audience: Annotated[
        list[str] | None,
        typer.Option("--audience", help="Whom it is for: kruntimes is the gateway alone. Default: the API and it."),
    ] = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Print a bearer token for curl.

    \b
    Examples:
      curl -H "Authorization: Bearer $(krt token)" …
      krt token --serviceaccount default -n demo
    """
    session = Session(namespace, context, kubeconfig)
    if service_account is not None:
        emit(_of_account(session, service_account, duration, audience or []))
        return
    if audience:
        raise Failure("InvalidUsage", "--audience is for a token of a --serviceaccount", USAGE)
    kind, _, value = (session.api.credential.authorization or "").partition(" ")
    if kind != "Bearer":
        message = "the kubeconfig's user has no bearer token, but another credential; try --serviceaccount NAME"
        raise Failure("NoToken", message, OTHER)
    emit(value)


def _of_account(session: Session, account: str, duration: str, audiences: list[str]) -> str:
    """A token that the API makes. For no audience named it is for the API itself, and the gateway takes it too."""
    name, seconds = run_name(account), seconds_of(duration, "--duration")
    if seconds is None or seconds < 1:
        raise Failure("InvalidOption", f"--duration: {duration} is no lifetime", USAGE)

    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": audiences, "expirationSeconds": round(seconds)},
    }
    namespace = quote(session.namespace, safe="")
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{quote(name, safe='')}/token"
    return str(decoded(session.api.ask("POST", path, body=request))["status"]["token"])


def kubeconfig(
    path: Annotated[bool, typer.Option("--path", help="Print where it is instead of its content.")] = False,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Of which krt up. Default: $KRUNTIMES_DATA_DIR or ~/.kruntimes.")
    ] = None,
) -> None:
    """Print the kubeconfig of the running `krt up`.

    \b
    Example:
      export KUBECONFIG=$(krt kubeconfig --path)
    """
    directory = (data_dir or data_directory()).expanduser().absolute()
    found = directory / "kubeconfig"
    try:
        content = found.read_text()
    except FileNotFoundError as error:
        raise Failure("NotRunning", f"there is no {found}; krt up makes it", NOT_FOUND) from error
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise Failure("ConfigInvalid", f"cannot read {found}: {what}") from error
    if not running(directory):
        say(f"note: nothing runs on {directory} now")
    emit(str(found) if path else content.rstrip())
