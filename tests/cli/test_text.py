"""Small things that need no server: durations, widths, tables, completion, failures."""

import json
from pathlib import Path

import pytest

from controlplane.cli import commands
from controlplane.cli.failure import Failure, failure_of, from_kube, printable
from controlplane.cli.options import seconds_of
from controlplane.cli.tables import print_table, width
from controlplane.kube.errors import Gone, error_of, malformed, unavailable
from controlplane.kube.meta import Status
from tests.apiserver.harness import run as a_run
from tests.cli.stage import Krt, Kubernetes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("1m30s", 90),
        ("1h", 3600),
        ("200ms", 0.2),
        ("1.5s", 1.5),
        (".5m", 30),
        ("0", 0),
        ("0s", 0),
        ("-1s", None),
    ],
)
def test_durations_are_gos(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "30", "1d", "1 s", "1s!", "1e3s", "9999h", "½s", "١s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Failure) as found:
        seconds_of(text)
    assert found.value.code == 2
    assert ("did you mean 30s" in found.value.message) is (text == "30")


def test_columns_line_up_for_wide_and_combining_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert (width("abc"), width("日本"), width("e\u0301"), width("ﬀ")) == (3, 4, 1, 1)
    print_table(("A", "B"), [("日本", "x"), ("e\u0301é", "y"), ("", ""), ("\x1b[31m", "z")])
    lines = capsys.readouterr().out.splitlines()
    assert [width(line[: line.index(end)]) for line, end in zip(lines, "Bxy", strict=False)] == [11, 11, 11]
    assert lines[4].startswith("\\x1b[31m")
    assert all(line == line.rstrip() for line in lines)


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert printable("a\x1b[2J\u202eb\u009b") == "a\\x1b[2J\\u202eb\\x9b"
    assert Failure("R", "a\n  b\tc").line() == "R: a b c"


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (error_of(Status(code=400, reason="BadRequest")), 1, "BadRequest"),
        (error_of(Status(code=401, reason="Unauthorized", message="Unauthorized")), 4, "Unauthorized"),
        (error_of(Status(code=403, reason="Forbidden")), 4, "Forbidden"),
        (error_of(Status(code=404, reason="NotFound")), 3, "NotFound"),
        (error_of(Status(code=409, reason="Conflict")), 5, "Conflict"),
        (error_of(Status(code=409, reason="AlreadyExists")), 5, "AlreadyExists"),
        (Gone(Status(code=410, reason="Expired")), 1, "Expired"),
        (error_of(Status(code=422, reason="Invalid")), 1, "Invalid"),
        (error_of(Status(code=429, reason="TooManyRequests")), 6, "TooManyRequests"),
        (error_of(Status(code=500, reason="InternalError")), 1, "InternalError"),
        (error_of(Status(code=503, reason="ServiceUnavailable")), 5, "ServiceUnavailable"),
        (error_of(Status(code=504, reason="Timeout")), 8, "Timeout"),
        (error_of(Status(code=507, reason="InsufficientStorage")), 1, "InsufficientStorage"),
        (unavailable("refused", sent=False), 9, "CannotConnect"),
        (malformed("html"), 1, "InternalError"),
    ],
)
def test_each_answer_of_the_api_has_its_exit_code(error: Exception, code: int, reason: str) -> None:
    failure = failure_of(error)
    assert (failure.code, failure.reason) == (code, reason)
    status = json.loads(failure.as_status())
    assert (status["kind"], status["status"], status["reason"]) == ("Status", "Failure", reason)


def test_a_connection_lost_after_sending_is_told_apart() -> None:
    try:
        try:
            raise ConnectionResetError("reset")
        except OSError as cause:
            raise unavailable("GET /: reset", sent=True) from cause
    except Exception as error:
        assert (failure_of(error).code, failure_of(error).reason) == (9, "OutcomeUnknown")
    assert from_kube(error_of(Status(code=502))).code == 9


def complete(krt: Krt, monkeypatch: pytest.MonkeyPatch, typed: str) -> list[str]:
    words = typed.split(" ")
    for name, value in {
        commands.COMPLETE_VAR: "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }.items():
        monkeypatch.setenv(name, value)
    done = krt()
    assert (done.code, done.err) == (0, ""), done
    return done.out.split()


def test_a_shell_completes_commands_and_options(krt: Krt, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete(krt, monkeypatch, "krt ") == list(commands.COMMANDS)
    assert complete(krt, monkeypatch, "krt in") == ["invoke"]
    assert "--invocation-id" in complete(krt, monkeypatch, "krt invoke --inv")
    assert complete(krt, monkeypatch, "krt get --kube") == ["--kubeconfig"]


def test_a_shell_completes_names_of_runs_and_is_silent_when_there_is_no_api(
    krt: Krt, kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("alpha", "alps", "beta"):
        kubernetes.put(a_run(name))
    assert complete(krt, monkeypatch, "krt invoke al") == ["alpha", "alps"]
    assert complete(krt, monkeypatch, "krt get beta al") == ["alpha", "alps"]
    assert complete(krt, monkeypatch, "krt get alpha al") == ["alps"]
    assert complete(krt, monkeypatch, "krt logs -n kube-system ") == []
    monkeypatch.setenv("KUBECONFIG", str(kubernetes.kubeconfig(tmp_path / "away", server="https://127.0.0.1:1")))
    assert complete(krt, monkeypatch, "krt get ") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_that_asks_krt(shell: str, krt: Krt) -> None:
    done = krt("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert f"{commands.COMPLETE_VAR}=complete_{shell}" in done.out
    krt("completion", "tcsh").failed(2, "InvalidUsage")
