"""`krt wait`, `krt cancel` and `krt delete`."""

from typing import Any

import pytest

from tests.apiserver.harness import run as a_run
from tests.cli.stage import Krt, Kubernetes

READY = {
    "phase": "Ready",
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "FunctionRegistered",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}


@pytest.mark.parametrize(
    ("goal", "status"),
    [
        ("condition=Ready", READY),
        ("condition=ready=true", READY),
        ("phase=Ready", READY),
        ("phase=registering", {"phase": "Registering"}),
        ("finished", {"phase": "Succeeded"}),
        ("jsonpath={.status.phase}=Releasing", {"phase": "Releasing"}),
        ("jsonpath={.status.attempt}=3", {"attempt": 3}),
        ("jsonpath=.status.reason", {"reason": "Bound"}),
    ],
)
def test_each_form_is_met_when_the_run_gets_there(
    goal: str, status: dict[str, Any], krt: Krt, kubernetes: Kubernetes
) -> None:
    kubernetes.put(a_run("it"))
    assert "it is Pending" in krt("wait", "it", "--for", goal, "--timeout", "0").failed(8, "TimedOut")
    changing = kubernetes.task(kubernetes.async_status("it", status))
    done = krt("wait", "it", "--for", goal)
    changing.result(5)
    assert (done.code, done.out) == (0, "run.kruntimes.io/it condition met\n"), done


@pytest.mark.parametrize("goal", ["", "Ready", "condition=", "condition=Warm", "phase=Done", "jsonpath=x", "phase="])
def test_a_goal_that_cannot_be_is_a_usage_error(goal: str, krt: Krt) -> None:
    krt("wait", "it", f"--for={goal}").failed(2, "InvalidOption")


@pytest.mark.parametrize(
    ("phase", "reason", "code"),
    [("Failed", "ImportFailed", 7), ("Timeout", "IdleTimeout", 8), ("Cancelled", "Cancelled", 1), ("Succeeded", "", 1)],
)
def test_a_run_that_ended_otherwise_ends_the_wait(
    phase: str, reason: str, code: int, krt: Krt, kubernetes: Kubernetes
) -> None:
    kubernetes.put(a_run("it"), {"phase": phase, "reason": reason, "message": "so it was"})
    message = krt("wait", "it", "--timeout", "1m").failed(code, reason or phase)
    assert message == f"Run it is {phase} and will not get to condition=Ready: so it was"
    assert krt("wait", "it", "--for", "finished").code == 0


def test_several_are_waited_for_at_once_and_the_first_failure_counts(krt: Krt, kubernetes: Kubernetes) -> None:
    for name, status in (("a", READY), ("b", {"phase": "Failed", "reason": "TaskFailed"}), ("c", {})):
        run = a_run(name)
        run["metadata"]["labels"] = {"app": "x"}
        kubernetes.put(run, status or None)
    for which in (("a", "b", "c"), ("--all",), ("-l", "app=x")):
        done = krt("wait", *which, "--timeout", "100ms")
        assert done.code == 7
        assert done.out == "run.kruntimes.io/a condition met\n"
        assert sorted(line.partition(":")[0] for line in done.err.splitlines()) == ["TaskFailed", "TimedOut"]
        (failed,) = (line for line in done.err.splitlines() if line.startswith("TaskFailed"))
        assert failed.endswith("; krt logs b shows what it printed")
    assert krt("wait", "a", "-o", "json").json["status"]["phase"] == "Ready"
    assert krt("wait", "a", "-o", "name").out == "run.kruntimes.io/a\n"


def test_creation_and_deletion_can_be_waited_for(krt: Krt, kubernetes: Kubernetes) -> None:
    krt("wait", "late").failed(3, "NotFound")
    krt("wait", "late", "--for", "create", "--timeout", "50ms").failed(8, "TimedOut")
    assert krt("wait", "late", "--for", "delete").code == 0
    kubernetes.put(a_run("late"))
    assert krt("wait", "late", "--for", "create").code == 0
    krt("wait", "late", "--for", "delete", "--timeout", "50ms").failed(8, "TimedOut")


def test_a_run_that_vanishes_ends_the_wait(krt: Krt, kubernetes: Kubernetes) -> None:
    run = a_run("it")
    run["metadata"]["finalizers"] = ["tests/hold"]
    kubernetes.put(run)
    kubernetes.delete_later("it")
    krt("wait", "it").failed(1, "NotFound")


def test_nothing_selected_is_said(krt: Krt, kubernetes: Kubernetes) -> None:
    for command in ("wait", "cancel", "delete"):
        done = krt(command, "--all")
        assert (done.code, done.out, done.err) == (0, "", "No Runs found in namespace default\n")


def test_cancel_asks_and_says_when_it_is_too_late(krt: Krt, kubernetes: Kubernetes) -> None:
    kubernetes.put(a_run("a"))
    kubernetes.put(a_run("b"), {"phase": "Succeeded"})
    done = krt("cancel", "a", "lost", "b")
    assert done.out.splitlines() == [
        "run.kruntimes.io/a cancellation requested",
        "run.kruntimes.io/b is Succeeded already",
    ]
    done.failed(3, "NotFound")
    found = kubernetes.get("a")
    assert found is not None
    assert found["spec"]["cancelRequested"] is True
    assert krt("cancel", "--all", "-o", "name").out == "run.kruntimes.io/a\nrun.kruntimes.io/b\n"


def test_delete_returns_when_they_are_gone(krt: Krt, kubernetes: Kubernetes, tmp_path: Any) -> None:
    for name in ("a", "b"):
        kubernetes.put(a_run(name))
    done = krt("delete", "a", "lost", "b")
    assert done.out == 'run.kruntimes.io "a" deleted\nrun.kruntimes.io "b" deleted\n'
    done.failed(3, "NotFound")
    assert kubernetes.get("a") is None
    assert krt("delete", "lost", "--ignore-not-found") == krt("delete", "lost", "--ignore-not-found", "-o", "name")
    for name in ("a", "b"):
        kubernetes.put(a_run(name))
    manifest = tmp_path / "a.yaml"
    manifest.write_text("apiVersion: kruntimes.io/v1alpha1\nkind: Run\nmetadata: {name: a}\nspec: {runtime: python}\n")
    assert krt("delete", "-f", str(manifest), "-o", "name").out == "run.kruntimes.io/a\n"
    assert krt("delete", "--all").out == 'run.kruntimes.io "b" deleted\n'
    krt("delete", "-f", str(manifest), "b").failed(2, "InvalidUsage")


def test_delete_waits_for_what_a_finalizer_holds(krt: Krt, kubernetes: Kubernetes) -> None:
    run = a_run("held")
    run["metadata"]["finalizers"] = ["tests/hold"]
    kubernetes.put(run)
    assert krt("delete", "held", "--no-wait").code == 0
    assert kubernetes.get("held") is not None
    kubernetes.release_later("held")
    assert krt("delete", "held").code == 0
    assert kubernetes.get("held") is None
