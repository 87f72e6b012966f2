"""What a user gets wrong is told in one clear line that names the field or the rule, with the right exit code."""

import json
import socket
from pathlib import Path

import pytest

from controlplane.kube.resources import RUNS
from tests.e2e.embedded import Embedded
from tests.e2e.stack import COUNTER, Stack, function, krt, names, task

NAME = names()


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"mode": {}}, "spec.mode", "exactly one"),
        ({"runtime": "Python"}, "spec.runtime", ""),
        ({"timeout": "1x"}, "spec.timeout", ""),
        ({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}, "spec.env", ""),
        ({"source": {"inline": "x"}}, "spec.source.inlinePath", ""),
        ({"mode": {"function": {"handler": "invoke"}}}, "spec.mode.function.handler", ""),
    ],
)
def test_a_manifest_that_breaks_a_rule_is_refused_by_field_and_rule(
    stack: Stack, change: dict[str, object], path: str, words: str
) -> None:
    manifest = function(next(NAME), COUNTER)
    manifest["spec"] |= change
    for done in (
        stack.krt("run", "-f", "-", stdin=json.dumps(manifest)),
        stack.kubectl("create", "-f", "-", stdin=json.dumps(manifest)),
    ):
        assert done.code == 1
        assert path in done.err
        assert words in done.err
        assert "Traceback" not in done.err


def test_a_moved_field_says_where_it_went(stack: Stack) -> None:
    manifest = task(next(NAME), "print(1)")
    manifest["spec"]["args"] = ["x"]
    done = stack.krt("run", "-f", "-", stdin=json.dumps(manifest))
    assert done.code == 2
    assert "spec.mode.task.args" in done.err


ONE_MACHINE = pytest.mark.embedded("of `krt up` itself")


@ONE_MACHINE
def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = krt("up", "--data-dir", str(tmp_path / "data"), "--api-port", str(taken.getsockname()[1]))
    assert done.code in (1, 2)
    assert done.err.splitlines()[-1].startswith("PortInUse: ")
    assert "Traceback" not in done.err


@ONE_MACHINE
def test_a_second_start_on_the_same_directory_is_refused(stack: Stack) -> None:
    assert isinstance(stack, Embedded)
    done = krt("up", "--data-dir", str(stack.directory), "--api-port", "0", "--gateway-port", "0")
    assert done.code in (1, 2)
    assert done.err.splitlines()[-1].startswith("AlreadyRunning: ")


def test_a_foreign_directory_and_one_that_is_none_are_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    file = tmp_path / "thesis.txt"
    for where in (tmp_path, file):
        done = krt("up", "--data-dir", str(where), "--api-port", "0", "--gateway-port", "0")
        assert done.code in (1, 2)
        assert len(done.err.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.txt"]


def test_an_invocation_of_what_is_no_function_or_not_there_says_so(stack: Stack) -> None:
    name = next(NAME)
    assert stack.krt("run", "-f", "-", "--wait", stdin=json.dumps(task(name, "print(1)"))).code == 0
    done = stack.krt("invoke", name)
    assert (done.code, done.err.split(":")[0]) == (5, "NotAFunction")
    assert stack.krt("invoke", "nobody").code == 3
    assert stack.krt("delete", name).code == 0


async def test_a_task_that_never_had_a_pod_is_no_function_and_a_function_like_it_is_not_ready(stack: Stack) -> None:
    too_much = {"resources": {"requests": {"runs": "1000000"}}}
    made = {
        409: task(next(NAME), "print(1)", **too_much),
        503: function(next(NAME), COUNTER, **too_much),
    }
    async with stack.client() as client, stack.https() as https:
        for status, manifest in made.items():
            run = await client.create(RUNS, client.namespace, manifest)
            path = f"/v1/namespaces/{client.namespace}/runtimes/python/runs/{run.metadata.uid}:invoke"
            async with https.post(stack.gateway + path, data=b"{}") as answer:
                said = await answer.json()
            assert (answer.status, said["reason"]) == (status, "NotAFunction" if status == 409 else "RunNotReady")
            await client.delete(RUNS, client.namespace, run.metadata.name)


def test_a_handler_that_raises_is_seven_with_its_exception(stack: Stack) -> None:
    name = next(NAME)
    broken = function(name, "def invoke(request):\n    raise ValueError('no such pod')\n")
    assert stack.krt("run", "-f", "-", "--wait", stdin=json.dumps(broken)).code == 0
    done = stack.krt("invoke", name)
    assert done.code == 7
    assert done.err.startswith("HandlerFailed: ")
    assert "no such pod" in done.err
    status = json.loads(stack.krt("get", name, "-o", "json").out)["status"]
    assert status["phase"] == "Ready"
    assert stack.krt("delete", name).code == 0
