"""`krt invoke`: one call of a function over HTTPS, the body of the answer on stdout and nothing else there."""

import base64
import binascii
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import SplitResult, unquote

import typer

from controlplane.cli.failure import FUNCTION_FAILED, NOT_READY, OTHER, USAGE, Failure, code_of, failure_of, printable
from controlplane.cli.hints import last_frame, next_step
from controlplane.cli.https import Answer, request
from controlplane.cli.options import ContextOption, KubeconfigOption, NamespaceOption, RunName, run_name, seconds_of
from controlplane.cli.output import say
from controlplane.cli.plain import PlainApi, runs_path
from controlplane.cli.session import Session
from controlplane.cli.tls import Dial, Trust, Unresolved, route, split
from controlplane.kube.errors import KubeError
from statemachine.reasons import Reason

REQUEST_MAX_BYTES: Final = 1024 * 1024  # the gateway's bound of a body; told here before anything is sent
TIMEOUT_MAX_S: Final = 300.0  # the gateway's bound of a deadline
ANSWER_MARGIN_S: Final = 10.0  # how much longer than the call's deadline we wait for its answer
INVOCATION_ID_MAX_CHARS: Final = 128


def invoke(
    name: RunName,
    data: Annotated[
        str,
        typer.Option("--data", "-d", help="The request: JSON, @FILE, or - for standard input.", metavar="JSON"),
    ] = "",
    invocation_id: Annotated[
        str | None, typer.Option("--invocation-id", help="Id of the call, for its logs.", metavar="ID")
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", help="Deadline of the call, at most 5m.", metavar="DURATION")
    ] = "30s",
    gateway_url: Annotated[
        str | None,
        typer.Option("--gateway-url", help="Send it here instead, such as https://127.0.0.1:18443.", metavar="URL"),
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
    name, limit = run_name(name), _deadline(timeout)
    headers = {"Content-Type": "application/json", "X-Kruntime-Timeout-Ms": str(round(limit * 1000))}
    if invocation_id is not None:
        headers["X-Kruntime-Invocation-ID"] = _id(invocation_id)
    gateway = _gateway(gateway_url)
    body = _body(data)
    session = Session(namespace, context, kubeconfig)
    url, trust = _endpoint(session, name)
    if gateway is not None:
        # The certificate may name the endpoint's host, as behind a port-forward, or this one, as behind an ingress.
        trust = trust._replace(system=True, names=(gateway.hostname or "", url.hostname or ""))
        url = url._replace(netloc=gateway.netloc)
    if verbose:
        say(f"> POST {url.geturl()}")
    answer = _call(session.api, url, trust, body, headers, limit + ANSWER_MARGIN_S, forward=gateway is None)
    if verbose:
        _explain(answer)
    if answer.status != 200:
        raise refused(answer, verbose=verbose)
    sys.stdout.buffer.write(answer.body)
    if sys.stdout.isatty():
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


def _deadline(text: str) -> float:
    limit = seconds_of(text)
    if limit is None or not 0.001 <= limit <= TIMEOUT_MAX_S:
        raise Failure("InvalidOption", f"--timeout: {text} is not between 1ms and {TIMEOUT_MAX_S:g}s", USAGE)
    return limit


def _id(text: str) -> str:
    visible = text.isascii() and text.isprintable() and " " not in text
    if not text or not visible or len(text) > INVOCATION_ID_MAX_CHARS:
        message = f"--invocation-id: 1 to {INVOCATION_ID_MAX_CHARS} visible ASCII characters"
        raise Failure("InvalidOption", message, USAGE)
    return text


def _gateway(text: str | None) -> SplitResult | None:
    if text is None:
        return None
    parts = split(text, "--gateway-url")
    if parts.scheme != "https" or parts.path not in ("", "/") or parts.query or "@" in parts.netloc:
        raise Failure("InvalidOption", f"--gateway-url: {text!r} is not https://HOST[:PORT]", USAGE)
    return parts


def _body(data: str) -> bytes:
    """The request. Failure when it is too large, or is not what the gateway takes."""
    if data in ("-", "@-"):
        where, body = "standard input", sys.stdin.buffer.read(REQUEST_MAX_BYTES + 1)
    elif data.startswith("@"):
        where = data[1:]
        try:
            with Path(where).open("rb") as file:
                body = file.read(REQUEST_MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            what = error.strerror if isinstance(error, OSError) else error
            raise Failure("InvalidOption", f"--data: cannot read {where}: {what}", USAGE) from error
    else:
        where, body = "--data", data.encode("utf-8", "surrogateescape")
    if len(body) > REQUEST_MAX_BYTES:
        message = f"{where} holds more than the {REQUEST_MAX_BYTES} bytes that a request may have"
        raise Failure(Reason.REQUEST_TOO_LARGE, message, OTHER)
    _check_json(body, where, data)
    return body


def _check_json(body: bytes, where: str, data: str) -> None:
    """Failure, exit code 2, for what is no JSON text; an empty one counts as `{}`."""
    if not body:
        return
    try:
        json.loads(body.decode(), parse_constant=_no_constant, parse_int=str)
    except UnicodeDecodeError as error:
        raise Failure(Reason.INVALID_REQUEST, f"{where} is not UTF-8 at byte {error.start}", USAGE) from error
    except (ValueError, RecursionError) as error:
        begins = body[:40].decode("utf-8", "replace")
        hint = f"; to send that file: -d @{data}" if where == "--data" and os.path.isfile(data) else ""  # noqa: PTH113
        message = f"{where} is no JSON: {error}; it begins with {begins!r}{hint}"
        raise Failure(Reason.INVALID_REQUEST, message, USAGE) from error


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON value")


def _call(
    api: PlainApi,
    url: SplitResult,
    trust: Trust,
    body: bytes,
    headers: dict[str, str],
    timeout: float,
    *,
    forward: bool,
) -> Answer:
    """Send it: straight, or through a port-forward where the endpoint's name means nothing here."""

    def send(dial: Dial) -> Answer:
        return request(
            "POST",
            url,
            credential=api.credential,
            trust=trust,
            headers=headers,
            dial=dial,
            body=body,
            timeout=timeout,
        )

    try:
        return send(route(url))
    except Unresolved as error:
        if not forward:
            raise
        from controlplane.cli.forward import through_a_pod

        hint = f"{error.message}; name the gateway with --gateway-url"
        try:
            dial = through_a_pod(api, url)
        except (Failure, KubeError) as problem:
            why = failure_of(problem)
            message = f"{hint}, or allow a port-forward to a gateway Pod ({why.reason}: {why.message})"
            raise Failure(error.reason, message, error.code) from problem
        if dial is None:
            raise Failure(error.reason, hint, error.code) from error
        return send(dial)


def _endpoint(session: Session, name: str) -> tuple[SplitResult, Trust]:
    """URL and trust of the Run's endpoint. Failure when it has none."""
    run = session.api.get(runs_path(session.namespace, name))
    try:
        spec, status = run.get("spec") or {}, run.get("status") or {}
        endpoint = status.get("endpoint")
        if not endpoint:
            raise _not_callable(name, spec, status)
        bundle = base64.b64decode(endpoint["caBundle"], validate=True) if endpoint.get("caBundle") else None
        return split(endpoint["url"], f"status.endpoint.url of Run {name}"), Trust(None, bundle, system=bundle is None)
    except (ValueError, KeyError, AttributeError, TypeError, binascii.Error) as error:
        raise Failure("EndpointInvalid", f"Run {name} has no usable status.endpoint: {error}") from error


def _not_callable(name: str, spec: dict[str, Any], status: dict[str, Any]) -> Failure:
    phase = status.get("phase", "Pending")
    waiting = [c for c in status.get("conditions", ()) if c.get("type") == "Scheduled" and c.get("status") == "False"]
    said = waiting[0] if waiting and phase == "Pending" else status
    why = f" ({said['reason']}: {said.get('message', '')})" if said.get("reason") else ""
    if "task" in spec.get("mode", {}):
        return Failure(Reason.NOT_A_FUNCTION, f"Run {name} is a task; only functions are invoked", NOT_READY)
    if phase in ("Succeeded", "Failed", "Timeout", "Cancelled", "Releasing"):
        hint = next_step(Reason.RUN_FINISHED)
        return Failure(Reason.RUN_FINISHED, f"Run {name} is {phase}{why}", NOT_READY, hint=hint)
    if phase == "Ready":
        return Failure("GatewayNotInstalled", f"Run {name} is Ready, but no gateway is installed", NOT_READY)
    return Failure(Reason.RUN_NOT_READY, f"Run {name} is {phase}{why}; krt wait {name} waits for it", NOT_READY)


def refused(answer: Answer, *, verbose: bool) -> Failure:
    """An answer that is no success, as the gateway says it."""
    code = FUNCTION_FAILED if answer.status == 500 else code_of(answer.status)
    try:
        status = json.loads(answer.body)
        reason, message = str(status["reason"] or f"HTTP{answer.status}"), str(status["message"])
    except (ValueError, KeyError, TypeError):
        text = answer.body[:500].decode("utf-8", "replace").strip()
        return Failure(f"HTTP{answer.status}", text or "the answer has no body", code)
    if reason in set(Reason):
        code = Reason(reason).info.exit_code
    causes = (status.get("details") or {}).get("causes") or ()
    frames = "\n".join(str(cause.get("message")) for cause in causes if cause.get("reason") == "frames")
    if verbose:  # What one line cannot hold.
        for line in (message.splitlines() if "\n" in message else []) + frames.splitlines():
            say(f"| {printable(line)}")
    hint = next_step(reason) or ("" if verbose else last_frame(frames))
    return Failure(reason, message, code, status=answer.body.replace(b"\n", b" "), hint=hint)


def _explain(answer: Answer) -> None:
    say(f"< {answer.status}")
    say(f"< invocation: {printable(unquote(answer.headers.get('x-kruntime-invocation-id', '')))}")
    if timing := answer.headers.get("server-timing"):
        say(f"< timing: {printable(timing)}")
    say(f"< client: {answer.seconds * 1000:.1f} ms with connection and TLS handshake")
    for name, value in answer.tls.items():
        say(f"< tls {name}: {printable(value)}")
