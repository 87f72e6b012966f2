"""runtimed with a real Runtime Server and real TLS: calls, the peer hop, drains and lost containers."""

import asyncio
import json
from pathlib import Path

import pytest

from controlplane.kube.resources import PODS, RUNS
from controlplane.pki import names
from dataplane.wire.dial import tls_dial
from dataplane.wire.errors import DialError
from dataplane.wire.messages import METHOD_INVOKE, METHOD_MODE, InvokeRequest, ModeReply, ModeRequest
from dataplane.wire.pool import Peer, Pool
from runtimes.contract.mux import CallError, ConnectionLost
from statemachine.run import Mode
from tests.kit.waiting import eventually
from tests.runtimed.fakes import NAMESPACE
from tests.runtimed.stack import ECHO, SLOW, running


async def test_a_call_is_served_by_the_owner_and_timed_by_hop(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        [pod] = stack.pods
        stack.seed("f", pod)
        await stack.until("f", "Ready")
        reply, body = await stack.invoke(pod, "f", b'"hello"')
        assert (reply.status, json.loads(body)) == (200, {"outputs": {"echo": "hello"}})
        assert [name for name, _ in reply.server_timing] == ["runtimed", "runtime", "worker"]


async def test_another_pod_passes_the_call_on_once(tmp_path: Path) -> None:
    async with running(tmp_path, pods=2) as stack:
        owner, other = stack.pods
        stack.seed("f", owner)
        await stack.until("f", "Ready")
        reply, body = await stack.invoke(other, "f", b'"hello"')
        assert (reply.status, json.loads(body)) == (200, {"outputs": {"echo": "hello"}})
        assert [name for name, _ in reply.server_timing] == ["peer", "runtimed", "runtime", "worker"]
        reply, _ = await stack.invoke(other, "f", hops=1)
        assert (reply.status, reply.reason) == (503, "StaleOwner")


async def test_a_call_names_the_only_epoch_that_may_serve_it(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        [pod] = stack.pods
        stack.seed("f", pod)
        await stack.until("f", "Ready")
        for head in ({"attempt": 2, "pod_uid": pod.uid}, {"attempt": 1, "pod_uid": "pod-9", "hops": 1}):
            reply, _ = await stack.invoke(pod, "f", **head)
            assert (reply.status, reply.reason) == (503, "StaleOwner")
        reply, _ = await stack.invoke(pod, "f", attempt=1, pod_uid=pod.uid)
        assert reply.status == 200


async def test_unknown_runs_are_not_found_after_a_second_and_tasks_never_invoked(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        [pod] = stack.pods
        reply, _ = await stack.invoke(pod, "nobody", timeout_ms=100)
        assert (reply.status, reply.reason) == (404, "RunNotFound")
        waiting = asyncio.ensure_future(stack.invoke(pod, "late"))
        await asyncio.sleep(0.05)
        stack.seed("late", pod)
        reply, _ = await waiting
        assert reply.reason != "RunNotFound"


async def test_errors_of_the_function_keep_their_reason(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        [pod] = stack.pods
        stack.seed("f", pod, inline="def invoke(request):\n    raise ValueError('no good')\n")
        stack.seed("slow", pod, inline=SLOW)
        await stack.until("f", "Ready")
        await stack.until("slow", "Ready")
        reply, _ = await stack.invoke(pod, "f")
        assert (reply.status, reply.reason, reply.hop) == (500, "HandlerFailed", "worker")
        assert "no good" in reply.message
        reply, _ = await stack.invoke(pod, "slow", b'{"s": 10}', timeout_ms=100)
        assert (reply.status, reply.reason) == (504, "InvocationTimeout")


async def test_one_call_at_a_time_is_the_servers_to_enforce(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        [pod] = stack.pods
        stack.seed("f", pod, inline=SLOW)
        await stack.until("f", "Ready")
        first = asyncio.ensure_future(stack.invoke(pod, "f", b'{"s": 0.3}'))
        await eventually(lambda: pod.serving.served == 1)
        reply, _ = await stack.invoke(pod, "f", b'{"s": 0}')
        assert (reply.status, reply.reason) == (429, "TooManyInvocations")
        assert (await first)[0].status == 200


async def test_peers_of_another_runtime_are_not_admitted_and_the_control_plane_invokes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        [pod] = stack.pods
        for subject in (
            names.control_plane(()),
            names.runtimed(NAMESPACE, "bash", "pod-7"),
            names.runtimed("other", "python", "pod-7"),
        ):
            context = stack.installation.client_context(subject)
            pool = Pool(tls_dial(lambda context=context: context))
            request = InvokeRequest(
                namespace=NAMESPACE, runtime="python", run_uid="x", invocation_id="i", deadline_ms=1000, user="eve"
            )
            with pytest.raises((DialError, ConnectionLost, CallError)):
                channel = await pool.connection(Peer(pod.ip, stack.port, pod.uid, NAMESPACE, "python"))
                await channel.call(METHOD_INVOKE, request, timeout=5)
            await pool.close()
        assert pod.serving.served == 0


async def test_a_drain_ends_no_call_in_flight_and_passes_later_ones_on(tmp_path: Path) -> None:
    async with running(tmp_path, pods=2) as stack:
        old, new = stack.pods
        stack.seed("f", old, inline=SLOW)
        await stack.until("f", "Ready")
        call = asyncio.ensure_future(stack.invoke(old, "f", b'{"s": 0.6}'))
        await eventually(lambda: old.serving.served == 1)
        old.daemon.start_draining()
        await stack.until("f", "Pending")
        assert not call.done()
        reply, _ = await stack.invoke(old, "f", b'{"s": 0}')
        assert (reply.status, reply.moving) == (503, True)
        ops = [
            {"op": "add", "path": f"/status/{field}", "value": value}
            for field, value in {
                "phase": "Scheduled",
                "attempt": 2,
                "assignedPod": new.name,
                "assignedPodUID": new.uid,
            }.items()
        ]
        await stack.kube.json_patch(RUNS, NAMESPACE, "f", ops, subresource="status")
        await stack.until("f", "Ready")
        reply, _ = await stack.invoke(old, "f", b'{"s": 0}')
        assert reply.status == 200
        assert old.serving.peers.passed_on == 1
        assert (await call)[0].status == 200
        await asyncio.wait_for(old.daemon.drained(), 10)
        assert await old.server.drain(timeout=5)


async def test_a_release_gives_calls_their_time_and_then_ends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataplane.runtimed.jobs.DRAIN_MS", 200)
    async with running(tmp_path) as stack:
        [pod] = stack.pods
        stack.seed("f", pod, inline=SLOW)
        await stack.until("f", "Ready")
        call = asyncio.ensure_future(stack.invoke(pod, "f", b'{"s": 8}'))
        await eventually(lambda: pod.serving.served == 1)
        await stack.kube.delete(RUNS, NAMESPACE, "f")
        await stack.until("f", "gone")
        assert ((await call)[0].status, (await call)[0].reason) == (502, "OutcomeUnknown")
        await eventually(lambda: not list((pod.config.work_dir / "runs").iterdir()))


async def test_a_killed_runtime_server_costs_its_calls_and_the_run_comes_back(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        [pod] = stack.pods
        stack.seed("f", pod, inline=SLOW)
        await stack.until("f", "Ready")
        call = asyncio.ensure_future(stack.invoke(pod, "f", b'{"s": 5}'))
        await eventually(lambda: pod.serving.served == 1)
        await pod.kill_server()
        assert (await call)[0].reason == "OutcomeUnknown"
        await stack.until("f", "Pending")
        await pod.start_server()
        ops = [
            {"op": "add", "path": f"/status/{field}", "value": value}
            for field, value in {
                "phase": "Scheduled",
                "attempt": 2,
                "assignedPod": pod.name,
                "assignedPodUID": pod.uid,
            }.items()
        ]
        await stack.kube.json_patch(RUNS, NAMESPACE, "f", ops, subresource="status")
        await stack.until("f", "Ready")
        reply, _ = await stack.invoke(pod, "f", b'{"s": 0}')
        assert reply.status == 200


async def test_a_restarted_daemon_keeps_what_the_server_holds(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        [pod] = stack.pods
        stack.seed("f", pod)
        await stack.until("f", "Ready")
        before = len(stack.kube.writes())
        await pod.stop_daemon()
        await pod.start_daemon()
        await eventually(lambda: pod.daemon.here("uid-f").local is not None)
        reply, body = await stack.invoke(pod, "f", b"1")
        assert (reply.status, json.loads(body)) == (200, {"outputs": {"echo": "1"}})
        assert len(stack.kube.writes()) == before


async def test_a_stale_lease_refuses_calls(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        [pod] = stack.pods
        stack.seed("f", pod, inline=ECHO)
        await stack.until("f", "Ready")
        pod.daemon.lease._good_until = 0.0
        reply, _ = await stack.invoke(pod, "f")
        assert (reply.status, reply.reason) == (503, "StaleOwner")
        assert await pod.daemon.lease.read()
        assert (await stack.invoke(pod, "f"))[0].status == 200
        await stack.kube.delete(PODS, NAMESPACE, pod.name)
        await stack.until("f", "Pending")


async def test_what_kind_of_run_a_uid_is_is_told_to_whoever_may_call(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        [pod] = stack.pods
        stack.seed("f", pod)
        stack.seed_task("t", pod, inline="import time; time.sleep(60)")
        await stack.until("f", "Ready")
        await stack.until("t", "Running")
        channel = await stack.gateway.connection(Peer(pod.ip, stack.port, pod.uid, NAMESPACE, "python"))
        for uid, runtime, mode in (
            ("uid-f", "python", Mode.FUNCTION),
            ("uid-t", "python", Mode.TASK),
            ("uid-x", "python", None),
            ("uid-f", "bash", None),
        ):
            head = ModeRequest(namespace=NAMESPACE, runtime=runtime, run_uid=uid)
            assert (await channel.call(METHOD_MODE, head, timeout=5)).decode(ModeReply).mode is mode
