"""`krt invoke`: what it sends, what it prints, and the exit code of every answer."""

import io
import json
import sys
from pathlib import Path

import pytest

from controlplane.cli.hints import next_step
from controlplane.cli.invoke import REQUEST_MAX_BYTES
from statemachine.reasons import Reason
from tests.apiserver.harness import run as a_run
from tests.cli.stage import Gateway, Krt, Kubernetes, status_body

ANSWERS = [reason for reason in Reason if reason.info.http_status]


def test_the_body_goes_to_stdout_and_nothing_else_is_said(krt: Krt, function: str, gateway: Gateway) -> None:
    done = krt("invoke", function, "-d", '{"q": 1}')
    assert (done.code, done.out, done.err) == (0, '{"outputs":{"a":1}}', "")
    (call,) = gateway.calls
    assert (call.method, call.body, call.headers["content-type"]) == ("POST", b'{"q": 1}', "application/json")
    assert call.path.endswith(":invoke")
    assert call.headers["x-kruntime-timeout-ms"] == "30000"
    assert call.headers["authorization"].startswith("Bearer ")


@pytest.mark.parametrize("reason", ANSWERS, ids=str)
def test_each_answer_of_the_gateway_has_its_exit_code_and_one_line(
    reason: Reason, krt: Krt, function: str, gateway: Gateway
) -> None:
    body = status_body(reason.info.http_status, reason, "what\nhappened")
    gateway.answer = (reason.info.http_status, body, {"Retry-After": "1"})
    done = krt("invoke", function)
    hint = next_step(reason)
    assert done.failed(reason.info.exit_code, reason) == ("what happened" + (f"; {hint}" if hint else ""))
    assert (done.out, len(done.err.splitlines())) == ("", 1)


def test_with_o_json_the_status_of_the_gateway_is_passed_on(krt: Krt, function: str, gateway: Gateway) -> None:
    gateway.answer = (429, status_body(429, "TooManyInvocations", "full", retryAfterSeconds=1), {})
    done = krt("invoke", function, "-o", "json")
    assert done.code == 6
    assert done.status["kruntimes"]["hop"] == "gateway"
    assert done.status["details"]["retryAfterSeconds"] == 1


def test_an_answer_that_is_no_status_is_told_by_its_code(krt: Krt, function: str, gateway: Gateway) -> None:
    gateway.answer = (503, b"<html>busy</html>", {})
    assert krt("invoke", function).failed(5, "HTTP503") == "<html>busy</html>"
    gateway.answer = (500, b"", {})
    assert krt("invoke", function).failed(7, "HTTP500") == "the answer has no body"


def test_a_connection_that_is_lost_leaves_the_outcome_unknown(krt: Krt, function: str, gateway: Gateway) -> None:
    gateway.answer = None
    krt("invoke", function).failed(9, "OutcomeUnknown")
    assert len(gateway.calls) == 1  # and it was not sent again


def test_a_gateway_that_is_away_cannot_be_connected(krt: Krt, function: str) -> None:
    message = krt("invoke", function, "--gateway-url", "https://127.0.0.1:1").failed(9, "CannotConnect")
    assert message == "cannot connect to 127.0.0.1:1: Connection refused"


def test_verbose_tells_id_hops_and_tls_on_stderr(krt: Krt, function: str, gateway: Gateway) -> None:
    headers = {"X-Kruntime-Invocation-ID": "mine", "Server-Timing": "gateway;dur=1.0"}
    gateway.answer = (200, b'{"outputs":{}}', headers)
    done = krt("invoke", function, "-v", "--invocation-id", "mine", "--timeout", "1m")
    assert done.out == '{"outputs":{}}'
    for fact in ("mine", "gateway;dur=1.0", "TLSv1.3", "gateway until", "gateway.test"):
        assert fact in done.err
    assert gateway.calls[0].headers["x-kruntime-invocation-id"] == "mine"
    assert gateway.calls[0].headers["x-kruntime-timeout-ms"] == "60000"


def test_verbose_shows_the_frames_of_a_handler_that_failed(krt: Krt, function: str, gateway: Gateway) -> None:
    causes = [{"reason": "frames", "message": '  File "main.py", line 3\n    boom()'}]
    gateway.answer = (500, status_body(500, "HandlerFailed", "ValueError: boom", causes=causes), {})
    done = krt("invoke", function, "-v")
    done.failed(7, "HandlerFailed")
    assert '|   File "main.py", line 3' in done.err.splitlines()


FRAMES = """  File "/d/pods/p/runs/u/1/src/pkg/main.py", line 3, in invoke
    inner()
  File "/d/pods/p/runs/u/1/src/pkg/other.py", line 12, in inner
    raise ValueError('boom')
"""


def test_a_handler_that_failed_is_told_with_its_last_frame(krt: Krt, function: str, gateway: Gateway) -> None:
    causes = [{"reason": "type", "message": "ValueError"}, {"reason": "frames", "message": FRAMES}]
    gateway.answer = (500, status_body(500, "HandlerFailed", "ValueError: boom", causes=causes), {})
    done = krt("invoke", function)
    assert (done.code, done.err) == (7, "HandlerFailed: ValueError: boom; pkg/other.py:12 (-v shows all frames)\n")
    assert krt("invoke", function, "-v").failed(7, "HandlerFailed") == "ValueError: boom"
    assert krt("invoke", function, "-o", "json").status["message"] == "ValueError: boom"


@pytest.mark.parametrize(
    ("reason", "code", "hint"),
    [
        ("TooManyInvocations", 6, "wait for a call to end, or make the Run with more spec.mode.function.concurrency"),
        ("RunFinished", 5, "krt run --replace makes it anew"),
    ],
)
def test_a_refusal_that_has_a_next_step_names_it_on_its_line_only(
    reason: str, code: int, hint: str, krt: Krt, function: str, gateway: Gateway
) -> None:
    gateway.answer = (Reason(reason).info.http_status, status_body(409, reason, "no"), {})
    assert krt("invoke", function).err == f"{reason}: no; {hint}\n"
    done = krt("invoke", function, "-o", "json")
    assert (done.code, done.status["message"]) == (code, "no")


def test_what_user_code_says_cannot_steer_the_terminal(krt: Krt, function: str, gateway: Gateway) -> None:
    gateway.answer = (500, status_body(500, "HandlerFailed", "\x1b]0;owned\x07\x1b[2J"), {})
    assert "\x1b" not in krt("invoke", function, "-v").err


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("hello", "it begins with 'hello'"),
        ("{'a': 1}", "no JSON"),
        ('{"a": NaN}', "NaN is no JSON value"),
        ('{"a": 1} {', "Extra data"),
        ("\ufeff{}", "no JSON"),
        (" ", "no JSON"),
        ('"\udcff"', "not UTF-8 at byte 1"),
    ],
)
def test_what_is_no_json_is_told_before_anything_is_sent(data: str, words: str, krt: Krt, gateway: Gateway) -> None:
    assert words in krt("invoke", "any", "-d", data).failed(2, "InvalidRequest")
    assert gateway.calls == []


@pytest.mark.parametrize("data", ["", "{}", "null", '"ü"', "[1, 2.5e300]", "9" * 5000, '{"a": 1, "a": 2}'])
def test_every_json_text_is_sent_as_it_stands(data: str, krt: Krt, function: str, gateway: Gateway) -> None:
    assert krt("invoke", function, "-d", data).code == 0
    assert gateway.calls[0].body == data.encode()


def test_a_name_of_a_file_is_recognised_as_a_slip(krt: Krt, tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    path.write_text("{}")
    assert f"-d @{path}" in krt("invoke", "any", "-d", str(path)).failed(2, "InvalidRequest")


def test_a_file_and_standard_input_may_hold_the_request(
    krt: Krt, function: str, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "q.json"
    path.write_bytes(b'{"from": "file"}')
    assert krt("invoke", function, "-d", f"@{path}").code == 0
    for spelled in ("-", "@-"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"from": "stdin"}')))
        assert krt("invoke", function, "-d", spelled).code == 0
    assert [call.body for call in gateway.calls] == [b'{"from": "file"}', *[b'{"from": "stdin"}'] * 2]


def test_a_request_of_a_mebibyte_is_sent_and_one_byte_more_is_not(
    krt: Krt, function: str, gateway: Gateway, tmp_path: Path
) -> None:
    path = tmp_path / "big.json"
    path.write_bytes(b'"' + b"x" * (REQUEST_MAX_BYTES - 2) + b'"')
    assert krt("invoke", function, "-d", f"@{path}").code == 0
    assert len(gateway.calls[0].body) == REQUEST_MAX_BYTES
    path.write_bytes(b'"' + b"x" * (REQUEST_MAX_BYTES - 1) + b'"')
    assert str(REQUEST_MAX_BYTES) in krt("invoke", function, "-d", f"@{path}").failed(1, "RequestTooLarge")
    assert len(gateway.calls) == 1


def test_an_early_refusal_is_heard_though_the_request_was_not_read(krt: Krt, function: str, tmp_path: Path) -> None:
    assert "No such file" in krt("invoke", function, "-d", "@/nonexistent").failed(2, "InvalidOption")
    assert "Is a directory" in krt("invoke", function, "-d", f"@{tmp_path}").failed(2, "InvalidOption")


@pytest.mark.parametrize(
    "options",
    [
        ("--timeout", "0"),
        ("--timeout", "6m"),
        ("--timeout", "soon"),
        ("--timeout", "30"),
        ("--invocation-id", ""),
        ("--invocation-id", "a b"),
        ("--invocation-id", "a\r\nX-Evil: 1"),
        ("--invocation-id", "x" * 129),
        ("--gateway-url", "http://127.0.0.1:1"),
        ("--gateway-url", "https://127.0.0.1:1/path"),
        ("--gateway-url", "https://user@127.0.0.1"),
    ],
)
def test_an_option_that_cannot_be_meant_is_a_usage_error(options: tuple[str, str], krt: Krt) -> None:
    assert options[0] in krt("invoke", "any", *options).failed(2, "InvalidOption")


def test_a_gateway_url_is_believed_by_the_endpoints_name_too(
    krt: Krt, kubernetes: Kubernetes, gateway: Gateway
) -> None:
    made = kubernetes.put(a_run("far"))
    endpoint = gateway.endpoint(made["metadata"]["uid"], "gateway.test")
    kubernetes.set_status("far", {"phase": "Ready", "endpoint": endpoint})
    assert "--gateway-url" in krt("invoke", "far").failed(9, "CannotConnect")
    # localhost is no name of the certificate; the endpoint's host is
    done = krt("invoke", "far", "--gateway-url", f"https://localhost:{gateway.port}", "-v")
    assert (done.code, done.out) == (0, '{"outputs":{"a":1}}'), done
    assert "tls name: gateway.test" in done.err
    endpoint = gateway.endpoint(made["metadata"]["uid"], "other.test")
    kubernetes.set_status("far", {"endpoint": endpoint})
    krt("invoke", "far", "--gateway-url", f"https://localhost:{gateway.port}").failed(9, "CannotConnect")
    assert len(gateway.calls) == 1  # nothing is sent to what cannot prove its name


def test_another_installations_certificate_is_not_believed(krt: Krt, kubernetes: Kubernetes, gateway: Gateway) -> None:
    made = kubernetes.put(a_run("other"))
    endpoint = gateway.endpoint(made["metadata"]["uid"])
    root = (kubernetes.directory / "pki" / "root.crt").read_bytes()
    import base64

    endpoint["caBundle"] = base64.b64encode(root).decode()
    kubernetes.set_status("other", {"phase": "Ready", "endpoint": endpoint})
    assert "TLS with" in krt("invoke", "other").failed(9, "CannotConnect")
    assert gateway.calls == []


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        ({}, "RunNotReady", "krt wait it waits for it"),
        ({"phase": "Registering"}, "RunNotReady", "Registering"),
        ({"phase": "Failed", "reason": "ImportFailed", "message": "no module x"}, "RunFinished", "ImportFailed: no mo"),
        ({"phase": "Releasing"}, "RunFinished", "Releasing"),
        ({"phase": "Ready"}, "GatewayNotInstalled", "no gateway"),
    ],
)
def test_a_run_without_an_endpoint_says_why_it_cannot_be_called(
    status: dict[str, str], reason: str, words: str, krt: Krt, kubernetes: Kubernetes
) -> None:
    kubernetes.put(a_run("it"), status)
    assert words in krt("invoke", "it").failed(5, reason)


def test_a_waiting_run_says_what_it_waits_for(krt: Krt, kubernetes: Kubernetes) -> None:
    waiting = {"type": "Scheduled", "status": "False", "reason": "NoCapacity", "message": "2 of 2 slots are used"}
    waiting["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    kubernetes.put(a_run("it"), {"conditions": [waiting]})
    assert "(NoCapacity: 2 of 2 slots are used)" in krt("invoke", "it").failed(5, "RunNotReady")


def test_a_task_and_a_run_that_is_not_there_cannot_be_called(krt: Krt, kubernetes: Kubernetes) -> None:
    kubernetes.put(a_run("job", mode={"task": {}}, source={"inline": "x"}))
    krt("invoke", "job").failed(5, "NotAFunction")
    krt("invoke", "nobody").failed(3, "NotFound")
    done = krt("invoke", "nobody", "-ojson")
    assert (done.code, done.status["code"], done.status["reason"]) == (3, 404, "NotFound")


def test_an_endpoint_that_makes_no_sense_is_told(krt: Krt, kubernetes: Kubernetes) -> None:
    endpoint = {"protocol": "HTTPS", "url": "https://a:b/", "caBundle": "e30="}
    kubernetes.put(a_run("odd"), {"phase": "Ready", "endpoint": endpoint})
    krt("invoke", "odd").failed(1, "InvalidURL")
    kubernetes.set_status("odd", {"endpoint": {"url": "https://127.0.0.1:1/"}})
    assert "certificates" in krt("invoke", "odd").failed(1, "ConfigInvalid")


def test_json_of_the_answer_is_passed_on_byte_for_byte(krt: Krt, function: str, gateway: Gateway) -> None:
    body = json.dumps({"outputs": {"ü": "日本"}}, ensure_ascii=False).encode()
    gateway.answer = (200, body, {})
    assert krt("invoke", function).out == body.decode()
