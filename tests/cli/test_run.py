"""`krt run`: what it creates, from options and from manifests, and how it follows it."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from controlplane.cli.describing import SOURCE_MAX_BYTES
from controlplane.cli.manifest import MANIFEST_MAX_BYTES
from tests.apiserver.harness import run as a_run
from tests.cli.stage import Krt, Kubernetes

HEAD = "apiVersion: kruntimes.io/v1alpha1\nkind: Run\n"
MINIMAL = HEAD + "metadata: {name: %s}\nspec: {runtime: bash, source: {inline: 'echo hi'}}\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "My_Handler v2.py"
    path.write_text("def invoke(request):\n    return {}\n")
    return path


def spec_of(kubernetes: Kubernetes, name: str) -> Any:
    found = kubernetes.get(name)
    assert found is not None
    return found["spec"]


def test_options_describe_a_function(krt: Krt, kubernetes: Kubernetes, source: Path) -> None:
    options = ("--runtime", "python", "--handler", "main.invoke", "--file", str(source), "--name", "f")
    more = ("--env", "A=1", "--env", "B=x=y", "--idle-timeout", "60", "--concurrency", "3", "--lifetime", "1h")
    done = krt("run", *options, *more)
    assert (done.code, done.out, done.err) == (0, "run.kruntimes.io/f created\n", "")
    spec = spec_of(kubernetes, "f")
    assert spec["mode"] == {"function": {"handler": "main.invoke", "idleTimeoutSeconds": 60, "concurrency": 3}}
    assert spec["source"] == {"inlinePath": source.name, "inline": source.read_text()}
    assert spec["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "x=y"}]
    assert (spec["timeout"], spec["runtime"]) == ("1h", "python")


def test_options_describe_a_task_with_arguments(krt: Krt, kubernetes: Kubernetes, source: Path) -> None:
    options = ("--runtime", "python", "--file", str(source), "--name", "t")
    assert krt("run", *options, "-o", "name", "--", "-o", "json", "--wait").out == "run.kruntimes.io/t\n"
    task = {"entrypoint": source.name, "args": ["-o", "json", "--wait"]}
    assert spec_of(kubernetes, "t")["mode"] == {"task": task}


def test_a_name_is_made_up_from_the_files(krt: Krt, kubernetes: Kubernetes, source: Path) -> None:
    made = krt("run", "--runtime", "python", "--file", str(source), "-o", "json").json
    assert made["metadata"]["name"].startswith("my-handler-v2-")
    assert krt("run", "--runtime", "bash", "-o", "name").out.startswith("run.kruntimes.io/bash-")


def test_source_may_come_from_standard_input(krt: Krt, kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, wanted in (
        (("--runtime", "bash", "--name", "a"), {"inline": "echo hi"}),
        (("--runtime", "bash", "--name", "b", "--handler", "pkg.f"), {"inline": "echo hi", "inlinePath": "pkg.sh"}),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"echo hi")))
        assert krt("run", *options, "--file", "-").code == 0
        assert spec_of(kubernetes, options[3])["source"] == wanted


def test_files_that_cannot_be_source_are_told(krt: Krt, tmp_path: Path) -> None:
    big, binary = tmp_path / "big.py", tmp_path / "binary.py"
    big.write_bytes(b"#" * (SOURCE_MAX_BYTES + 1))
    binary.write_bytes(b"# \xff\n")
    options = ("run", "--runtime", "python", "--file")
    message = krt(*options, str(big)).failed(2, "SourceTooLarge")
    assert str(SOURCE_MAX_BYTES) in message
    assert message.endswith("; put it into a Git repository and name that in spec.source.git")
    assert "byte 2" in krt(*options, str(binary)).failed(2, "SourceInvalid")
    assert "No such file" in krt(*options, str(tmp_path / "absent")).failed(2, "SourceUnreadable")
    krt("run", "--runtime", "python", "--env", "novalue").failed(2, "InvalidOption")
    krt("run", "--runtime", "python", "--name", "a/b").failed(2, "InvalidName")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "holds no object"),
        (b"---\n---\n", "holds no object"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        (b"a: [", "not YAML: line"),
        (b"a: b: c", "not YAML: line 1"),
        (b"\x00", "not YAML"),
        (b"5", "not a number"),
        (b"- a", "not a list"),
        (b"kind: Pod\napiVersion: v1", "not Pod of v1"),
        (b"kind: Run\napiVersion: v1", "not Run of v1"),
        (HEAD.encode(), "metadata needs a name"),
        (f"{HEAD}metadata: []".encode(), "metadata needs a name"),
        (f"{HEAD}metadata: {{name: 5}}".encode(), "metadata.name is no text"),
        (f"{HEAD}metadata: {{name: a, name: b}}".encode(), "key 'name' is there twice"),
        (b'{"kind": "Run", "kind": "Run"}', "key 'kind' is there twice"),
        (f"{HEAD}metadata: {{name: a}}\nspec: {{handler: a.b}}".encode(), "it moved to spec.mode.function.handler"),
        (f"{HEAD}metadata: {{name: a}}\nspec: {{args: []}}".encode(), "it moved to spec.mode.task.args"),
        (b"a: &a [*a]", "too many values"),
        (b"a: &a [1,1,1,1,1,1,1,1,1]\n" + b"\n".join(b"%c: &%c [%s]" % (n, n, b",".join([b"*%c" % (n - 1)] * 9))
         for n in range(98, 106)), "too many values"),
        (b"[" * 20_000, "nested too deeply"),
        (b"[" * 9_000 + b"]" * 9_000, ""),
        (b'{"a":' * 9_000 + b"1" + b"}" * 9_000, ""),
        (b"- " * 20_000, ""),
        (b"? {a: b}\n: c", "a key that is no text"),
        (b"x" * (MANIFEST_MAX_BYTES + 1), "is larger than"),
    ],
)  # fmt: skip
def test_a_manifest_that_is_none_is_told_with_its_place(text: bytes, words: str, krt: Krt, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(text)
    done = krt("run", "-f", str(path))
    message = done.failed(2, done.err.partition(":")[0])
    assert str(path) in message
    assert words in message
    assert done.err.startswith("Manifest")


def test_files_lists_and_several_documents_are_taken_in_order(
    krt: Krt, kubernetes: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several, listed = tmp_path / "several.yaml", tmp_path / "list.json"
    several.write_text(f"{MINIMAL % 'a'}---\n# nothing\n---\n{MINIMAL % 'b'}")
    items = [a_run("c"), a_run("d")]
    listed.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent="\t"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((MINIMAL % "e").encode())))
    done = krt("run", "-f", str(several), "-f", str(listed), "-f", "-", "-o", "name")
    assert done.out.split() == [f"run.kruntimes.io/{name}" for name in "abcde"]
    assert krt("run", "-f", str(several)).failed(5, "AlreadyExists")
    krt("run", "-f", "/absent").failed(2, "ManifestUnreadable")
    krt("run", "-f", str(tmp_path)).failed(2, "ManifestUnreadable")


def test_dates_and_other_scalars_stay_what_they_are(krt: Krt, kubernetes: Kubernetes, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL % "a" + "")
    path.write_text((MINIMAL % "a").replace("}}\n", "}, env: [{name: DAY, value: 2026-01-01}]}\n"))
    assert krt("run", "-f", str(path)).code == 0
    assert spec_of(kubernetes, "a")["env"] == [{"name": "DAY", "value": "2026-01-01"}]


def test_the_apis_refusal_names_field_and_rule(krt: Krt, kubernetes: Kubernetes, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(HEAD + "metadata: {name: a}\nspec: {runtime: python, mode: {function: {}}}\n")
    assert "spec.mode.function.handler" in krt("run", "-f", str(path)).failed(1, "Invalid")
    status = krt("run", "-f", str(path), "-o", "json").status
    assert (status["code"], status["details"]["causes"][0]["field"]) == (422, "spec.mode.function.handler")
    path.write_text(HEAD + "metadata: {name: a}\nspec: {runtime: python, colour: red}\n")
    assert 'unknown field "spec.colour"' in krt("run", "-f", str(path)).failed(1, "BadRequest")


def test_namespaces_of_manifest_and_option_must_agree(krt: Krt, kubernetes: Kubernetes, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text((MINIMAL % "a").replace("name: a", "name: a, namespace: kube-system"))
    assert "kube-system" in krt("run", "-f", str(path), "-n", "default").failed(2, "InvalidUsage")
    assert krt("run", "-f", str(path), "-n", "kube-system").code == 0
    assert krt("get", "a", "-n", "kube-system", "-o", "name").code == 0


def test_replace_deletes_only_for_what_is_valid(krt: Krt, kubernetes: Kubernetes, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL % "a")
    assert krt("run", "-f", str(path), "--replace").out == "run.kruntimes.io/a created\n"
    first = kubernetes.get("a")
    path.write_text((MINIMAL % "a").replace("bash", "Bad_Name"))
    krt("run", "-f", str(path), "--replace").failed(1, "Invalid")
    assert kubernetes.get("a") == first
    path.write_text((MINIMAL % "a").replace("hi", "ho"))
    done = krt("run", "-f", str(path), "--replace")
    assert (done.out, done.err) == ("run.kruntimes.io/a replaced\n", "deleting Run a\n")
    second = kubernetes.get("a")
    assert second is not None and first is not None
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    kubernetes.hold("a")
    krt("run", "-f", str(path), "--replace", "--timeout", "50ms").failed(8, "TimedOut")


@pytest.mark.parametrize(
    ("end", "code", "reason"),
    [
        ({"phase": "Ready"}, 0, ""),
        ({"phase": "Succeeded", "reason": "Completed"}, 0, ""),
        ({"phase": "Failed", "reason": "ImportFailed", "message": "No module named 'x'"}, 7, "ImportFailed"),
        ({"phase": "Timeout", "reason": "LifetimeExceeded"}, 8, "LifetimeExceeded"),
        ({"phase": "Cancelled", "reason": "Cancelled"}, 1, "Cancelled"),
    ],
)
def test_wait_shows_each_phase_and_ends_by_the_last(
    end: dict[str, Any], code: int, reason: str, krt: Krt, kubernetes: Kubernetes, tmp_path: Path
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL % "a")
    waiting = {"type": "Scheduled", "status": "False", "reason": "NoCapacity", "message": "no slot"}
    waiting["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    script = kubernetes.task(kubernetes.script("a", [{"conditions": [waiting]}, {"phase": "Scheduled"}, end]))
    done = krt("run", "-f", str(path), "--wait", "-o", "json")
    script.result(10)
    assert done.code == code, done
    assert done.json["status"]["phase"] == end["phase"]
    shown = [line.split("a  ")[1] for line in done.err.splitlines() if " ms " in line]
    assert shown == ["Pending", "Pending (NoCapacity: no slot)", "Scheduled", end["phase"]]
    if reason:
        assert done.status["reason"] == reason


def test_wait_that_takes_too_long_says_what_the_run_waits_for(krt: Krt, kubernetes: Kubernetes, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL % "a" + "---\n" + MINIMAL % "b")
    done = krt("run", "-f", str(path), "--wait", "--timeout", "100ms")
    assert "it is Pending" in done.failed(8, "TimedOut")
    assert done.out == "run.kruntimes.io/a created\nrun.kruntimes.io/b created\n"
    assert done.err.count("TimedOut") == 2
