"""The seven cases of the design document, on the real system."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.kube.resources import RUNS
from tests.e2e.stack import COUNTER, Stack, ca_of, function, krt, names, settled, task, until

NAME = names()
EXAMPLES = Path(__file__).parents[2] / "examples"


def make(stack: Stack, manifest: dict[str, Any], *options: str) -> Any:
    """Create a Run, wait until it is Ready or finished and return it."""
    done = stack.krt("run", "-f", "-", "--wait", "--timeout", "30s", *options, stdin=json.dumps(manifest))
    assert done.code == 0, done.err
    return stack.krt("get", manifest["metadata"]["name"], "-o", "json").json


def read(stack: Stack, name: str) -> Any:
    return stack.krt("get", name, "-o", "json").json


def test_registration_and_ready_have_the_documents_shape(stack: Stack, tmp_path: Path) -> None:
    done = stack.krt("run", "-f", str(EXAMPLES / "diagnose-service.yaml"), "--wait")
    assert done.code == 0, done.err
    assert [phase for phase in ("Pending", "Ready") if phase in done.err] == ["Pending", "Ready"] or "Ready" in done.err
    run = read(stack, "diagnose-service")
    status, uid = run["status"], run["metadata"]["uid"]
    assert status["phase"] == "Ready"
    assert status["endpoint"]["protocol"] == "HTTPS"
    assert (
        status["endpoint"]["url"]
        == f"{stack.gateway}/v1/namespaces/{stack.namespace}/runtimes/python/runs/{uid}:invoke"
    )
    assert ca_of(run).startswith(b"-----BEGIN CERTIFICATE-----")
    assert status["assignedPod"].startswith("runtime-python-")
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "FunctionRegistered")
    authority = tmp_path / "endpoint-ca.crt"
    authority.write_bytes(ca_of(run))
    code, body = stack.curl(status["endpoint"]["url"], stack.token(), authority)
    assert (code, json.loads(body)) == (200, {"outputs": {"summary": "diagnosis complete"}})
    assert stack.krt("invoke", "diagnose-service").json == {"outputs": {"summary": "diagnosis complete"}}
    assert stack.krt("delete", "diagnose-service").code == 0


def test_the_documents_task_succeeds_with_its_arguments(stack: Stack) -> None:
    done = stack.krt("run", "-f", str(EXAMPLES / "summarize-once.yaml"), "--wait")
    assert done.code == 0, done.err
    assert stack.krt("logs", "summarize-once").out == "hello\n"
    assert stack.krt("delete", "summarize-once").code == 0
    name = next(NAME)
    shown = task(name, "import sys\nprint(sys.argv)", mode={"entrypoint": "main.py", "args": ["--verbose"]})
    run = make(stack, shown)
    assert (run["status"]["phase"], run["status"]["exitCode"]) == ("Succeeded", 0)
    assert stack.krt("logs", name).out == "['main.py', '--verbose']\n"


def test_repeated_invocations_keep_module_state(stack: Stack) -> None:
    name = next(NAME)
    make(stack, function(name, COUNTER))
    counts = [stack.krt("invoke", name).json["outputs"]["count"] for _ in range(3)]
    assert counts == [1, 2, 3]
    assert stack.krt("delete", name).code == 0


def test_idle_timeout_ends_in_timeout_and_calls_keep_it_away(stack: Stack) -> None:
    name = next(NAME)
    make(stack, function(name, COUNTER, mode={"idleTimeoutSeconds": 2}))
    for _ in range(3):
        assert stack.krt("invoke", name).code == 0
    until("the Run timed out", lambda: read(stack, name)["status"]["phase"] == "Timeout")
    status = read(stack, name)["status"]
    assert status["reason"] == "IdleTimeout"
    assert "endpoint" not in status
    assert stack.krt("invoke", name).code == 5
    assert stack.krt("delete", name).code == 0


def test_release_by_cancel_keeps_the_object_and_release_by_deletion_does_not(stack: Stack) -> None:
    name = next(NAME)
    uid = make(stack, function(name, COUNTER))["metadata"]["uid"]
    assert stack.left_on_disk(uid)
    assert stack.krt("cancel", name).code == 0
    until("the Run was cancelled", lambda: read(stack, name)["status"]["phase"] == "Cancelled")
    assert "finalizers" not in read(stack, name)["metadata"]
    assert stack.krt("delete", name).code == 0
    assert stack.krt("get", name).code == 3
    assert not stack.left_on_disk(uid)


async def test_a_released_slot_is_used_again_and_nothing_stays_on_disk(stack: Stack) -> None:
    """More Runs one after another than the Runtime has slots, each leaving nothing."""
    runtime = stack.runtime("narrow")
    assert stack.kubectl("apply", "-f", "-", stdin=json.dumps(runtime)).code == 0
    async with stack.client() as client:
        uids = []
        for _ in range(3):
            pair = [function(next(NAME), COUNTER, runtime="narrow") for _ in range(2)]
            for one in pair:
                await client.create(RUNS, client.namespace, one)
            for one in pair:
                name = one["metadata"]["name"]
                run = await settled(
                    lambda name=name: client.get(RUNS, client.namespace, name), lambda r: r.status.phase == "Ready"
                )
                uids.append(run.metadata.uid)
            waiting = function(next(NAME), COUNTER, runtime="narrow")
            await client.create(RUNS, client.namespace, waiting)
            third = waiting["metadata"]["name"]

            def waits(run: Any) -> bool:
                return any(c.type == "Scheduled" and c.reason == "NoCapacity" for c in run.status.conditions)

            await settled(lambda third=third: client.get(RUNS, client.namespace, third), waits)
            await client.delete(RUNS, client.namespace, pair[0]["metadata"]["name"])
            await settled(
                lambda third=third: client.get(RUNS, client.namespace, third), lambda r: r.status.phase == "Ready"
            )
            for name in (pair[1]["metadata"]["name"], third):
                await client.delete(RUNS, client.namespace, name)
            await settled(
                lambda: client.list(RUNS, client.namespace, fields="spec.runtime=narrow"), lambda found: not found.items
            )
    assert [path for uid in uids for path in stack.left_on_disk(uid)] == []
    assert stack.kubectl("delete", "runtime", "narrow", "--wait=true").code == 0


async def test_an_invoke_sent_to_the_wrong_pod_is_passed_on_to_the_owner(fresh: Stack) -> None:
    """A Runtime with 2 replicas, and a second gateway that asks any ready Pod, as a plain Service would."""
    fresh.start()
    assert fresh.kubectl("scale", "runtime", "python", "--replicas=2").code == 0
    until(
        "two Pods are Ready",
        lambda: fresh.kubectl("get", "runtime", "python", "-o", "jsonpath={.status.readyReplicas}").out == "2",
    )
    async with fresh.client() as client, fresh.https() as https, fresh.another_gateway(routing="service") as other:
        owners: set[str] = set()
        for _ in range(4):
            name = next(NAME)
            await client.create(RUNS, client.namespace, function(name, COUNTER))
            run = await settled(lambda name=name: client.get(RUNS, client.namespace, name), ready)
            owners.add(run.status.assigned_pod_uid)
            local, proxied = set(), set()
            for count in range(1, 9):
                gateway = other if count % 2 else fresh.gateway
                async with https.post(run.status.endpoint.url.replace(fresh.gateway, gateway), data=b"{}") as answer:
                    assert answer.status == 200, await answer.text()
                    assert (await answer.json())["outputs"]["count"] == count
                    hops = tuple(part.split(";")[0].strip() for part in answer.headers["Server-Timing"].split(","))
                    (proxied if "peer" in hops else local).add(gateway)
            assert proxied == {other}, (local, proxied)
            assert fresh.gateway in local
        assert len(owners) == 2


def ready(run: Any) -> bool:
    return bool(run.status.phase == "Ready")


@pytest.mark.parametrize("victims", [("runtime",), ("runtimed",), ("runtime", "runtimed")], ids="+".join)
def test_a_killed_container_costs_a_ready_run_nothing_but_its_registration(
    fresh: Stack, victims: tuple[str, ...]
) -> None:
    fresh.start()
    name = next(NAME)
    run = make(fresh, function(name, COUNTER))
    uid, pod = run["metadata"]["uid"], run["status"]["assignedPodUID"]
    assert fresh.krt("invoke", name).json["outputs"]["count"] == 1
    fresh.kill(pod, *victims)

    def serves() -> bool:
        done = fresh.krt("invoke", name)
        return done.code == 0

    until("the Run serves again", serves, 10)
    again = read(fresh, name)
    assert again["metadata"]["uid"] == uid
    assert again["status"]["phase"] == "Ready"
    assert again["status"].get("failures", 0) == 0
    assert fresh.krt("delete", name).code == 0
    until("its slot is free", lambda: _used(fresh) == "0")


def _used(stack: Stack) -> str:
    return stack.kubectl("get", "runtime", "python", "-o", "jsonpath={.status.capacity.used.runs}").out or "0"


def test_a_source_that_does_not_import_ends_failed_with_the_exception(stack: Stack) -> None:
    name = next(NAME)
    broken = function(name, "import nothing_of_that_name\ndef invoke(request): return {}\n")
    done = stack.krt("run", "-f", "-", "--wait", stdin=json.dumps(broken))
    assert done.code == 7
    assert done.err.splitlines()[-1].startswith("ImportFailed: ")
    ready = next(c for c in read(stack, name)["status"]["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ImportFailed")
    assert "ModuleNotFoundError" in ready["message"]
    assert "nothing_of_that_name" in ready["message"]


def test_bash_runs_tasks_and_functions(stack: Stack) -> None:
    name = next(NAME)
    job = task(
        name,
        'echo "$1 $PLACE"; echo "answer=42" >> "$KRUNTIME_OUTPUTS"',
        "bash",
        mode={"args": ["hello"]},
        env=[{"name": "PLACE", "value": "there"}],
    )
    run = make(stack, job)
    assert run["status"]["outputs"] == {"answer": "42"}
    assert stack.krt("logs", name).out == "hello there\n"
    name = next(NAME)
    manifest = function(
        name,
        'greet() { local input; input=$(cat); echo "{\\"outputs\\": {\\"got\\": $input}}"; }\n',
        runtime="bash",
        mode={"handler": "main.greet"},
    )
    manifest["spec"]["source"]["inlinePath"] = "main.sh"
    make(stack, manifest)
    assert stack.krt("invoke", name, "-d", '{"a": 1}').json == {"outputs": {"got": {"a": 1}}}


def test_a_failed_task_says_its_exit_code_and_is_retried_by_policy(stack: Stack) -> None:
    name = next(NAME)
    failing = task(name, "import sys; sys.exit(3)", retryPolicy={"maxAttempts": 2, "backoff": "1s"})
    done = stack.krt("run", "-f", "-", "--wait", "--timeout", "20s", stdin=json.dumps(failing))
    assert done.code == 7
    status = read(stack, name)["status"]
    assert (status["phase"], status["reason"], status["exitCode"], status["attempt"], status["failures"]) == (
        "Failed",
        "TaskFailed",
        3,
        2,
        2,
    )


async def test_a_lifetime_ends_a_function_in_timeout(stack: Stack) -> None:
    name = next(NAME)
    make(stack, function(name, COUNTER, timeout="1s"))
    await asyncio.to_thread(until, "its lifetime is over", lambda: read(stack, name)["status"]["phase"] == "Timeout")
    assert read(stack, name)["status"]["reason"] == "LifetimeExceeded"


def test_a_finished_run_goes_after_its_ttl(stack: Stack) -> None:
    name = next(NAME)
    manifest = json.dumps(task(name, "print(1)", ttlSecondsAfterFinished=1))
    assert stack.krt("run", "-f", "-", "--wait", "--timeout", "30s", stdin=manifest).code == 0
    until("its TTL is over", lambda: stack.krt("get", name).code == 3)


def test_another_caller_needs_get_on_that_run(stack: Stack, tmp_path: Path) -> None:
    name = next(NAME)
    run = make(stack, function(name, COUNTER))
    assert stack.kubectl("create", "serviceaccount", "caller").code == 0
    token = stack.krt("token", "--serviceaccount", "caller").out.strip()
    authority = tmp_path / "endpoint-ca.crt"
    authority.write_bytes(ca_of(run))

    def status(bearer: str) -> int:
        return stack.curl(run["status"]["endpoint"]["url"], bearer, authority)[0]

    assert status(token) == 403
    assert status("nonsense") == 401
    assert (
        stack.kubectl(
            "create", "role", "getter", "--verb=get", "--resource=runs.kruntimes.io", f"--resource-name={name}"
        ).code
        == 0
    )
    assert (
        stack.kubectl(
            "create", "rolebinding", "caller", "--role=getter", f"--serviceaccount={stack.namespace}:caller"
        ).code
        == 0
    )
    until("the denial is forgotten", lambda: status(token) == 200, 10)


def test_krt_needs_nothing_but_a_kubeconfig(stack: Stack) -> None:
    assert krt("get", "x", "--kubeconfig", "/nonexistent").code == 1
    assert stack.krt("get", "nobody").code == 3
