"""The command line itself: help, wrong usage, and the spellings that kubectl's users are used to."""

from typing import Any

import pytest

from controlplane.cli.commands import COMMANDS, load
from controlplane.cli.main import wants_json
from tests.apiserver.harness import run as a_run
from tests.cli.stage import Krt, Kubernetes

SPEC_COMMANDS = (
    "up down status run invoke get list wait cancel delete logs token kubeconfig explain replay diagram version "
    "completion"
)


@pytest.mark.parametrize("name", SPEC_COMMANDS.split())
def test_each_command_helps_with_an_example(name: str, krt: Krt) -> None:
    done = krt(name, "--help")
    assert (done.code, done.err) == (0, "")
    assert "Example" in done.out
    assert f"krt {name}" in done.out
    assert done.out == krt("help", name).out == krt(name, "-h").out


def test_the_help_names_every_command_and_its_first_line_is_that_of_the_command(krt: Krt) -> None:
    text = krt("--help").out
    assert text == krt().out
    for name, (module, _, summary) in COMMANDS.items():
        assert f"{name} " in text
        assert summary in text
        if module not in ("up", "conformance"):
            assert load(name).help.splitlines()[0].replace("`", "") == summary


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("frob",), "No such command 'frob'; see krt --help"),
        (("lsit",), "Did you mean 'list'"),
        (("--frob",), "No such option: --frob"),
        (("list", "--frob"), "No such option: --frob; see krt list --help"),
        (("list", "-o", "xml"), "'xml' is not one of"),
        (("list", "extra"), "unexpected extra argument"),
        (("invoke",), "Missing argument 'NAME'"),
        (("get", "-n"), "requires an argument"),
        (("logs", "x", "--tail", "many"), "--tail"),
        (("run",), "either -f FILE or --runtime NAME"),
        (("run", "main.py"), "-f main.py"),
        (("run", "-f", "x", "--handler", "a.b"), "-f takes no other"),
        (("run", "--runtime", "python", "--handler", "a.b"), "--handler needs --file"),
        (("run", "--runtime", "python", "--concurrency", "2"), "for functions"),
        (("delete",), "exactly one of them"),
        (("delete", "a", "--all"), "exactly one of them"),
        (("wait", "-l", "a=b", "--all"), "exactly one of them"),
        (("get", "a", "-A"), "names go with no selector"),
        (("get", "a", "b", "-w"), "--watch takes one name"),
        (("token", "--audience", "x"), "--audience is for"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(args: tuple[str, ...], words: str, krt: Krt) -> None:
    done = krt(*args)
    assert words in done.failed(2, "InvalidUsage")
    assert (done.out, len(done.err.splitlines())) == ("", 1)


@pytest.mark.parametrize(
    "spelled", [("-o", "json"), ("-ojson",), ("-o=json",), ("--output", "json"), ("--output=json",)]
)
def test_wrong_usage_is_a_status_with_o_json_however_it_is_spelled(spelled: tuple[str, ...], krt: Krt) -> None:
    for command in ("list", "invoke", "diagram"):  # those that print no objects take it too
        done = krt(command, *spelled, "--frob")
        assert (done.code, done.status["reason"]) == (2, "InvalidUsage")


def test_o_json_among_the_arguments_of_a_task_is_not_ours() -> None:
    assert not wants_json(["run", "--", "-o", "json"])
    assert wants_json(["run", "-o", "json", "--", "x"])


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../x", "a b", "a%2fb", "a?b", "a#b", "ü", "a\udcff", "x" * 254]
)
def test_what_could_not_be_a_name_is_refused_before_anything_is_asked(name: str, krt: Krt) -> None:
    for command in ("get", "delete", "invoke", "logs", "explain", "cancel", "wait"):
        krt(command, name).failed(2, "InvalidName")
    krt("list", "-n", f"a/{name}").failed(2, "InvalidName")


def test_names_may_carry_their_kind_as_o_name_prints_it(krt: Krt, kubernetes: Kubernetes) -> None:
    kubernetes.put(a_run("one"))
    for spelled in ("one", "run/one", "runs/one", "run.kruntimes.io/one", "runs.kruntimes.io/one"):
        assert krt("get", spelled, "-o", "name").out == "run.kruntimes.io/one\n"
    krt("get", "pod/one").failed(2, "InvalidName")


def test_flags_may_be_set_as_kubectls_are(krt: Krt, kubernetes: Kubernetes) -> None:
    run = a_run("held")
    run["metadata"]["finalizers"] = ["tests/hold"]
    kubernetes.put(run)
    assert krt("delete", "held", "--wait=false").code == 0
    done = krt("delete", "held", "--wait=true", "--timeout=50ms")
    assert "finalizers tests/hold" in done.failed(8, "TimedOut")
    assert krt("get", "-o=name", "-A=true").out == "run.kruntimes.io/held\n"
    assert "held" in krt("get", "-A=false", "--no-headers").out
    krt("get", "--watch=maybe").failed(2, "InvalidUsage")


def test_a_defect_of_ours_says_so_in_one_line(krt: Krt, monkeypatch: pytest.MonkeyPatch) -> None:
    import controlplane.cli.version as version

    def broken(*_: Any) -> Any:
        raise KeyError("oops")

    monkeypatch.setattr(version, "distribution_version", broken)
    assert "KRT_DEBUG=1" in krt("version").failed(1, "InternalError")
    monkeypatch.setenv("KRT_DEBUG", "1")
    assert "Traceback" in krt("version").err


def test_the_version_is_told_by_an_option_too(krt: Krt) -> None:
    assert krt("--version").out == krt("version", "--client").out
    assert krt("--version").out.startswith("client: ")
