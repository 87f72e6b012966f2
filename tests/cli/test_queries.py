"""`krt get` and `krt list`: tables, objects and names, once and as they change."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.cli import plain
from tests.apiserver.harness import run as a_run
from tests.cli.stage import ROOT, Krt, Kubernetes

COLUMNS = ["NAME", "PHASE", "READY", "REASON", "RUNTIME", "POD", "ATTEMPT", "AGE"]


def test_a_list_is_a_table_as_the_server_makes_it(krt: Krt, kubernetes: Kubernetes) -> None:
    kubernetes.put(a_run("one"), {"phase": "Failed", "reason": "ImportFailed", "attempt": 2})
    for args in (("list",), ("get",)):
        head, row = krt(*args).out.splitlines()
        assert head.split() == COLUMNS
        assert row.split()[:4] == ["one", "Failed", "ImportFailed", "python"]
        assert head.index("PHASE") == row.index("Failed")
    head, row = krt("list", "-A", "-o", "wide").out.splitlines()
    assert head.split() == ["NAMESPACE", *COLUMNS, "UID", "POD", "UID", "URL"]
    assert row.split()[:2] == ["default", "one"]
    assert "<none>" in row
    assert krt("list", "--no-headers").out.split()[0] == "one"


def test_nothing_there_is_said_on_stderr(krt: Krt, kubernetes: Kubernetes) -> None:
    assert krt("list") == krt("get")
    done = krt("list")
    assert (done.code, done.out, done.err) == (0, "", "No Runs found in namespace default\n")
    assert krt("list", "-A").err == "No Runs found\n"
    assert krt("list", "-o", "name").out == ""
    assert krt("list", "-o", "json").json["items"] == []


def test_one_run_is_an_object_and_several_are_a_list(krt: Krt, kubernetes: Kubernetes) -> None:
    for name in ("one", "two"):
        kubernetes.put(a_run(name))
    one = krt("get", "one", "-o", "json").json
    assert (one["kind"], one["metadata"]["name"]) == ("Run", "one")
    assert "managedFields" not in one["metadata"]
    assert yaml.safe_load(krt("get", "one", "-o", "yaml").out) == one
    for args in (("get", "one", "two"), ("list",), ("get",)):
        several = krt(*args, "-o", "json").json
        assert (several["kind"], several["apiVersion"]) == ("List", "v1")
        assert [item["metadata"]["name"] for item in several["items"]] == ["one", "two"]
    assert krt("get", "two", "one", "two", "-o", "name").out == "run.kruntimes.io/two\nrun.kruntimes.io/one\n"


def test_source_keeps_its_lines_in_yaml(krt: Krt, kubernetes: Kubernetes) -> None:
    kubernetes.put(a_run("one"))
    text = krt("get", "one", "-o", "yaml").out
    assert "    inline: |\n      def invoke(request):\n          return {}\n" in text


def test_what_is_not_there_hides_nothing_of_the_rest(krt: Krt, kubernetes: Kubernetes) -> None:
    kubernetes.put(a_run("here"))
    done = krt("get", "gone", "here", "lost")
    assert done.out.splitlines()[1].startswith("here ")
    assert sorted(done.err.splitlines()) == [
        f'NotFound: runs.kruntimes.io "{name}" not found' for name in ("gone", "lost")
    ]
    assert done.code == 3
    assert krt("get", "gone", "here", "--ignore-not-found").code == 0
    assert krt("get", "gone", "--ignore-not-found") == krt("get", "gone", "--ignore-not-found", "-o", "json")
    assert krt("get", "gone", "-o", "json").status["details"]["name"] == "gone"


def test_selectors_are_the_servers(krt: Krt, kubernetes: Kubernetes) -> None:
    for name, team in (("one", "a"), ("two", "b")):
        run = a_run(name)
        run["metadata"]["labels"] = {"team": team}
        kubernetes.put(run)
    kubernetes.set_status("two", {"phase": "Ready"})
    assert krt("list", "-l", "team=a", "-o", "name").out == "run.kruntimes.io/one\n"
    assert krt("get", "-l", "team in (a,b),team!=a", "-o", "name").out == "run.kruntimes.io/two\n"
    assert krt("list", "--field-selector", "status.phase=Ready", "-o", "name").out == "run.kruntimes.io/two\n"
    for wrong in (("-l", "a in"), ("--field-selector", "spec.env=x")):
        done = krt("list", *wrong)
        assert (done.code, len(done.err.splitlines())) == (1, 1), done


def test_long_lists_are_read_in_pages(krt: Krt, kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"r{number}" for number in range(5)]
    for name in names:
        kubernetes.put(a_run(name))
    monkeypatch.setattr(plain, "PAGE_ITEMS", 2)
    assert krt("list", "-o", "name").out.split() == [f"run.kruntimes.io/{name}" for name in names]
    assert len(krt("list").out.splitlines()) == 1 + len(names)
    assert len(krt("list", "-o", "json").json["items"]) == len(names)


@contextmanager
def watching(kubernetes: Kubernetes, tmp_path: Path, *args: str) -> Iterator[Any]:
    """`krt` in a process of its own whose lines are read as they come; interrupted at the end."""
    environ = {**os.environ, "KUBECONFIG": str(kubernetes.kubeconfig(tmp_path / "watching"))}
    with subprocess.Popen(
        [sys.executable, "-m", "controlplane.cli", *args], cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130


def test_a_watch_shows_each_change_in_place_under_its_heading(kubernetes: Kubernetes, tmp_path: Path) -> None:
    kubernetes.put(a_run("one"))
    with watching(kubernetes, tmp_path, "list", "-w") as lines:
        head, row = lines.readline(), lines.readline()
        assert row.split()[:2] == ["one", "Pending"]
        kubernetes.set_status("one", {"phase": "Registering"})
        kubernetes.put(a_run("two"))
        changed, added = lines.readline(), lines.readline()
        assert changed.split()[:2] == ["one", "Registering"]
        assert added.split()[:2] == ["two", "Pending"]
        assert head.index("RUNTIME") == row.index("python") == changed.index("python") == added.index("python")


def test_objects_and_names_can_be_watched_too(kubernetes: Kubernetes, tmp_path: Path) -> None:
    kubernetes.put(a_run("one"))
    kubernetes.put(a_run("two"))
    with watching(kubernetes, tmp_path, "get", "one", "-w", "-o", "name") as lines:
        assert lines.readline() == "run.kruntimes.io/one\n"
        kubernetes.set_status("two", {"phase": "Ready"})
        kubernetes.set_status("one", {"phase": "Ready"})
        assert lines.readline() == "run.kruntimes.io/one\n"
    with watching(kubernetes, tmp_path, "get", "-w", "-o", "json") as lines:
        text = lines.readline()
        while True:
            try:
                assert json.loads(text)["kind"] == "Run"
                break
            except ValueError:
                text += lines.readline()


def test_a_run_that_waits_shows_why_it_has_no_pod(krt: Krt, kubernetes: Kubernetes) -> None:
    kubernetes.put(a_run("it"))
    why = {"type": "Scheduled", "status": "False", "reason": "RuntimeNotFound", "message": "no python"}
    why["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    kubernetes.set_status("it", {"phase": "Pending", "conditions": [why]})
    assert krt("list", "--no-headers").out.split()[:3] == ["it", "Pending", "RuntimeNotFound"]
    assert krt("get", "it", "--no-headers").out.split()[:3] == ["it", "Pending", "RuntimeNotFound"]
    kubernetes.set_status("it", {"phase": "Pending", "conditions": [why], "reason": "BackingOff"})
    assert krt("get", "it", "--no-headers").out.split()[:3] == ["it", "Pending", "BackingOff"]
