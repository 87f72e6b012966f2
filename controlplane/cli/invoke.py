"""`krt invoke`: one call of a function over HTTPS, the body of the answer on stdout and nothing else there."""

import base64
import binascii
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import typer

from controlplane.cli.failure import BY_HTTP_STATUS, NOT_READY, OTHER, USAGE, Failure
from controlplane.cli.https import Answer, request
from controlplane.cli.output import say
from controlplane.cli.queries import seconds_of
from controlplane.cli.session import ContextOption, KubeconfigOption, NamespaceOption, Session
from statemachine.reasons import Reason

REQUEST_MAX_BYTES: Final = 1024 * 1024  # the gateway's bound of a body; told here before anything is sent
ANSWER_MARGIN_S: Final = 10.0  # how much longer than the call's deadline we wait for its answer


def invoke(
    name: Annotated[str, typer.Argument(help="Name of the Run.", show_default=False)],
    data: Annotated[str, typer.Option("--data", "-d", help="The request: JSON, @FILE, or - for standard input.")] = "",
    invocation_id: Annotated[str | None, typer.Option("--invocation-id", help="Id of the call, for its logs.")] = None,
    timeout: Annotated[str, typer.Option("--timeout", help="Deadline of the call, such as 30s.")] = "30s",
    gateway_url: Annotated[
        str | None, typer.Option("--gateway-url", help="Send it here instead, such as https://127.0.0.1:18443.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Id, time per hop and TLS facts, on stderr.")
    ] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Call a function.

    \b
    Examples:
      krt invoke diagnose-service
      krt invoke diagnose-service -d '{"pod": "web-1"}' -v
      cat request.json | krt invoke diagnose-service -d -
    """
    limit = seconds_of(timeout)
    assert limit is not None
    body = _body(data)
    session = Session(namespace, context, kubeconfig)
    url, ca_pem = _endpoint(session, name)
    if gateway_url is not None:
        url = _redirected(url, gateway_url)
    headers = {"Content-Type": "application/json", "X-Kruntime-Timeout-Ms": str(int(limit * 1000))}
    if invocation_id is not None:
        headers["X-Kruntime-Invocation-ID"] = invocation_id
    answer = request(
        session.access(), "POST", url, body=body, headers=headers, ca_pem=ca_pem, timeout=limit + ANSWER_MARGIN_S
    )
    if verbose:
        _explain(answer, url)
    if answer.status != 200:
        raise refused(answer)
    sys.stdout.buffer.write(answer.body)
    if sys.stdout.isatty():
        sys.stdout.buffer.write(b"\n")
    sys.stdout.flush()


def _body(data: str) -> bytes:
    if data == "-":
        body = sys.stdin.buffer.read(REQUEST_MAX_BYTES + 1)
    elif data.startswith("@"):
        try:
            with Path(data[1:]).open("rb") as file:
                body = file.read(REQUEST_MAX_BYTES + 1)
        except OSError as error:
            raise Failure("InvalidOption", f"--data: cannot read {data[1:]}: {error.strerror}", USAGE) from error
    else:
        body = data.encode("utf-8", "surrogateescape")
    if len(body) > REQUEST_MAX_BYTES:
        raise Failure("RequestTooLarge", f"the request is larger than {REQUEST_MAX_BYTES} bytes", OTHER)
    return body


def _endpoint(session: Session, name: str) -> tuple[str, bytes | None]:
    """URL and CA of the Run's endpoint. Failure when it has none."""
    access = session.access()
    path = f"/apis/kruntimes.io/v1alpha1/namespaces/{quote(session.namespace)}/runs/{quote(name, safe='')}"
    answer = request(access, "GET", access.server + path, headers={"Accept": "application/json"})
    if answer.status != 200:
        raise refused(answer)
    run = json.loads(answer.body)
    status = run.get("status") or {}
    endpoint = status.get("endpoint")
    if endpoint is None:
        raise _not_callable(name, run.get("spec", {}), status)
    try:
        ca_pem = base64.b64decode(endpoint["caBundle"], validate=True) if endpoint.get("caBundle") else None
    except binascii.Error as error:
        raise Failure("EndpointInvalid", f"status.endpoint.caBundle of Run {name} is not base64") from error
    return endpoint["url"], ca_pem


def _not_callable(name: str, spec: dict[str, Any], status: dict[str, Any]) -> Failure:
    phase = status.get("phase", "Pending")
    why = f"{status.get('reason')}: {status.get('message')}" if status.get("reason") else "no endpoint"
    if "task" in spec.get("mode", {}):
        return Failure(Reason.NOT_A_FUNCTION, f"Run {name} is a task; only functions are invoked", NOT_READY)
    if phase in ("Succeeded", "Failed", "Timeout", "Cancelled", "Releasing"):
        return Failure(Reason.RUN_FINISHED, f"Run {name} is {phase} ({why})", NOT_READY)
    if phase == "Ready":
        return Failure("GatewayNotInstalled", f"Run {name} is Ready, but no gateway is installed", NOT_READY)
    return Failure(Reason.RUN_NOT_READY, f"Run {name} is {phase} ({why}); krt wait {name} waits for it", NOT_READY)


def _redirected(url: str, gateway: str) -> str:
    base = urlsplit(gateway)
    if base.scheme != "https" or not base.netloc:
        raise Failure("InvalidOption", f"--gateway-url: {gateway!r} is not https://HOST[:PORT]", USAGE)
    return urlunsplit(urlsplit(url)._replace(netloc=base.netloc))


def refused(answer: Answer) -> Failure:
    """An answer that is no success, as the gateway or the API server says it."""
    try:
        status = json.loads(answer.body)
        reason, message = str(status["reason"]), str(status["message"])
    except (ValueError, KeyError, TypeError):
        reason, message = f"HTTP{answer.status}", answer.body[:500].decode("utf-8", "replace") or "no body"
        return Failure(reason, message, BY_HTTP_STATUS.get(answer.status, OTHER))
    known = Reason(reason).info.exit_code if reason in set(Reason) else None
    code = known if known is not None else BY_HTTP_STATUS.get(answer.status, OTHER)
    return Failure(reason, message, code, status=answer.body)


def _explain(answer: Answer, url: str) -> None:
    say(f"url: {url}")
    say(f"status: {answer.status}")
    say(f"invocation: {answer.headers.get('x-kruntime-invocation-id', '')}")
    say(f"timing: {answer.headers.get('server-timing', '')}; client {answer.seconds * 1000:.1f} ms with TLS handshake")
    say(f"tls: {answer.tls}")
