"""Functions: C10 to C26, C33."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path

from runtimes.conformance.kit import Bench, alive, descendants, each, failing, folder_mode, until, until_held
from runtimes.contract import messages as m


@dataclass
class Held:
    """A call of the program `wait`: started when `started` exists, ends when `release` is called."""

    task: asyncio.Task[object]
    started: Path
    until: Path

    def release(self) -> None:
        self.until.touch()


async def hold(bench: Bench, registration: str, name: str = "call", *, timeout: float = 20) -> Held:
    started, end = bench.tmp / f"{name}-started", bench.tmp / f"{name}-until"
    request = {"started": str(started), "until": str(end)}
    task = asyncio.create_task(bench.invoke(registration, request, timeout=timeout))
    await until(lambda: started.exists() or task.done(), f"{name} started")
    return Held(task, started, end)


async def test_a_function_is_registered_and_answers(bench: Bench) -> None:
    """C10, C15"""
    _, registration = await bench.register("echo")
    assert await bench.invoke(registration, {"a": ["ü", 1, None]}) == {"outputs": {"request": {"a": ["ü", 1, None]}}}


async def test_an_empty_body_is_an_empty_object(bench: Bench) -> None:
    """C15"""
    _, registration = await bench.register("echo")
    assert await bench.invoke(registration, raw=b"") == {"outputs": {"request": {}}}


async def test_a_digest_of_something_else_is_refused(bench: Bench) -> None:
    """C10"""
    head = bench.function("echo")
    wrong = m.RegisterRequest(epoch=head.epoch, directory=head.directory, handler=head.handler, digest="0" * 64)
    async with failing("InvalidArgument"):
        await bench.client.register_function(wrong, timeout=5)
    assert await bench.held(head.epoch.run_uid) == []


async def test_registering_again_gives_the_same_registration_and_loads_nothing(bench: Bench) -> None:
    """C11"""
    head = bench.function("load-once", env={"MARK": str(bench.tmp / "loaded")})
    first = await bench.client.register_function(head, timeout=10)
    assert await bench.client.register_function(head, timeout=10) == first


async def test_two_registrations_at_once_are_one(bench: Bench) -> None:
    """C11"""
    head = bench.function("load-once", env={"MARK": str(bench.tmp / "loaded")})
    first, second = await asyncio.gather(*(bench.client.register_function(head, timeout=10) for _ in range(2)))
    assert first == second


async def test_the_same_epoch_with_another_digest_already_exists(bench: Bench) -> None:
    """C11"""
    epoch, registration = await bench.register("echo")
    async with failing("AlreadyExists"):
        await bench.register("echo", epoch=epoch, env={"X": "1"})
    assert await bench.invoke(registration) == {"outputs": {"request": {}}}


async def test_a_higher_attempt_supersedes_and_a_lower_one_is_refused(bench: Bench) -> None:
    """C11"""
    first, old = await bench.register("echo")
    _, new = await bench.register("echo", epoch=bench.epoch(first.run_uid, 3))
    async with failing("FailedPrecondition"):
        await bench.invoke(old)
    async with failing("FailedPrecondition"):
        await bench.register("echo", epoch=bench.epoch(first.run_uid, 2))
    async with failing("FailedPrecondition"):
        await bench.register("echo", epoch=first)
    assert await bench.invoke(new) == {"outputs": {"request": {}}}


async def test_another_pod_of_the_same_attempt_is_refused(bench: Bench) -> None:
    """C11"""
    epoch, registration = await bench.register("echo")
    other = bench.epoch(epoch.run_uid, 1, pod_uid="another-pod")
    async with failing("FailedPrecondition"):
        await bench.register("echo", epoch=other)
    async with failing("FailedPrecondition"):
        await bench.unregister(other)
    assert await bench.invoke(registration) == {"outputs": {"request": {}}}


async def test_a_load_that_fails_says_why_and_leaves_nothing(bench: Bench) -> None:
    """C12"""
    head = bench.function("load-fails")
    async with failing("ImportFailed") as caught:
        await bench.client.register_function(head, timeout=10)
    assert "load failed on purpose" in caught[0].message
    assert caught[0].details
    assert await bench.held(head.epoch.run_uid) == []
    assert sorted(path.name for path in Path(head.directory).parent.iterdir()) == ["src"]


async def test_after_a_failed_load_the_same_epoch_may_be_tried_again(bench: Bench) -> None:
    """C12"""
    epoch = bench.epoch()
    async with failing("ImportFailed"):
        await bench.register("load-fails", epoch=epoch)
    _, registration = await bench.register("echo", epoch=epoch)
    assert await bench.invoke(registration) == {"outputs": {"request": {}}}


async def test_a_missing_handler_is_named(bench: Bench) -> None:
    """C12"""
    async with failing("HandlerNotFound") as caught:
        await bench.register("no-handler")
    assert "invoke" in caught[0].message and bench.dialect.file() in caught[0].message


async def test_a_file_that_is_not_there_is_named(bench: Bench) -> None:
    """C12"""
    async with failing("SourceInvalid") as caught:
        await bench.register("echo", handler="pkg.other.invoke")
    assert f"pkg/other{bench.dialect.suffix}" in caught[0].message


async def test_a_load_beyond_its_time_is_ended(bench: Bench) -> None:
    """C13"""
    head = bench.function("load-hangs")
    began = time.monotonic()
    async with failing("RegistrationTimedOut"):
        await bench.client.register_function(head, timeout=0.3)
    assert time.monotonic() - began < 2
    assert await bench.held(head.epoch.run_uid) == []


async def test_dots_before_the_last_are_folders(bench: Bench) -> None:
    """C14"""
    name = f"pkg/deep{bench.dialect.suffix}"
    _, registration = await bench.register("", handler="pkg.deep.invoke", files={name: bench.dialect.function("echo")})
    assert await bench.invoke(registration, {}) == {"outputs": {"request": {}}}


async def test_the_environment_is_the_contracts_and_nothing_else(bench: Bench) -> None:
    """C14"""
    epoch, registration = await bench.register(
        "environment", env={"LANG": "POSIX", "MINE": "1", "PATH": "/bin:/usr/bin"}
    )
    env = (await bench.invoke(registration))["outputs"]
    assert env.pop("CWD") == bench.source(epoch, {})
    assert env["MINE"] == "1" and env["LANG"] == "POSIX" and env["PATH"] == "/bin:/usr/bin"
    assert env["KRUNTIME_RUN_UID"] == epoch.run_uid and env["KRUNTIME_ATTEMPT"] == "1"
    assert [folder_mode(env[name]) for name in ("HOME", "TMPDIR")] == [0o700, 0o700]
    left = {k for k in env if not k.startswith("KRUNTIME_")} - {"PATH", "HOME", "TMPDIR", "LANG", "MINE"}
    assert left <= {"PWD", "SHLVL", "_", "OLDPWD"}  # A shell's own.
    await bench.unregister(epoch)
    assert [folder_mode(env[name]) for name in ("HOME", "TMPDIR")] == [None, None]


async def test_stdin_is_at_its_end(bench: Bench) -> None:
    """C14"""
    _, registration = await bench.register("stdin")
    assert await bench.invoke(registration) == {"outputs": {"stdin": ""}}


NOT_JSON = [
    *(b"{", b"{} {}", b"[" * 100000),
    *(b"NaN", b'{"a": Infinity}', b"1e400", b'{"a": [-1e400]}'),
    *(b'{"a": "\xff"}', b'{"a": "\xed\xa0\x80"}', b"\xef\xbb\xbf{}"),
    *(b'"\\ud800"', b'{"a": "\\udc00"}', b'{"\\ud800x": 1}'),
]


@each("body", NOT_JSON)
async def test_a_body_that_is_not_json_never_reaches_the_handler(bench: Bench, body: bytes) -> None:
    """C16"""
    _, registration = await bench.register("echo")
    async with failing("InvalidRequest"):
        await bench.invoke(registration, raw=body)
    assert await bench.invoke(registration) == {"outputs": {"request": {}}}


async def test_a_body_too_large_is_refused_and_the_largest_is_served(bench: Bench) -> None:
    """C16, C2"""
    _, registration = await bench.register("echo")
    async with failing("RequestTooLarge"):
        await bench.invoke(registration, raw=json.dumps("x" * 1_048_575).encode())
    text = "x" * 1_000_000
    assert await bench.invoke(registration, text) == {"outputs": {"request": text}}


async def test_an_unknown_registration_is_refused(bench: Bench) -> None:
    """C17"""
    async with failing("FailedPrecondition"):
        await bench.invoke("nothing-of-this-name")


@each(
    ("program", "reason", "says"),
    [
        ("fail", "HandlerFailed", "the cause of it"),
        ("wrong-shape", "HandlerResultInvalid", "expected"),
        ("too-large", "ResponseTooLarge", "1048576"),
    ],
)
async def test_a_call_that_fails_says_why_and_touches_nothing_else(
    bench: Bench, program: str, reason: str, says: str
) -> None:
    """C18"""
    _, registration = await bench.register(program)
    for _ in range(3):
        async with failing(reason) as caught:
            await bench.invoke(registration)
        assert says in caught[0].message
    assert (await bench.client.function_status(registration)).state == "ready"


async def test_a_large_result_comes_whole(bench: Bench) -> None:
    """C15, C2"""
    _, registration = await bench.register("just-fits")
    assert len((await bench.invoke(registration))["outputs"]["x"]) == 1_000_000


async def test_a_worker_that_dies_costs_its_call_only(bench: Bench) -> None:
    """C18, C21"""
    _, registration = await bench.register("crash")
    before = await bench.invoke(registration, {})
    async with failing("WorkerCrashed"):
        await bench.invoke(registration, {"crash": 1})
    after = await bench.invoke(registration, {})
    assert after["outputs"]["pid"] != before["outputs"]["pid"]


async def test_calls_beyond_the_cap_are_refused_at_once(bench: Bench) -> None:
    """C19"""
    _, registration = await bench.register("wait", concurrency=2)
    calls = [await hold(bench, registration, f"call-{i}") for i in range(2)]
    began = time.monotonic()
    async with failing("TooManyInvocations"):
        await bench.invoke(registration, {})
    assert time.monotonic() - began < 1
    for call in calls:
        call.release()
    pids = {(await call.task)["outputs"]["pid"] for call in calls}  # type: ignore[index]
    assert len(pids) == 2
    again = await hold(bench, registration, "again")
    again.release()
    await again.task


async def test_at_the_deadline_the_whole_group_is_dead_before_the_answer(bench: Bench) -> None:
    """C20"""
    _, registration = await bench.register("stray")
    started = bench.tmp / "started"
    before = set(descendants(bench.server.pid))
    call = asyncio.create_task(bench.invoke(registration, {"started": str(started)}, timeout=1.0))
    await until(lambda: started.exists() or call.done(), "the handler started")
    strays = {pid: what for pid, what in descendants(bench.server.pid).items() if pid not in before}
    assert sum("sleep" in what for what in strays.values()) >= 2, strays
    async with failing("InvocationTimeout"):
        await call
    left = [pid for pid, what in strays.items() if "sleep" in what and alive(pid)]
    assert left == []
    assert (await bench.client.function_status(registration)).state == "ready"


async def test_a_call_waits_for_a_replacement_but_not_for_ever(bench: Bench) -> None:
    """C21"""
    epoch, registration = await bench.register("load-slowly", env={"MARK": str(bench.tmp / "mark")})
    async with failing("WorkerCrashed"):
        await bench.invoke(registration)
    began = time.monotonic()
    async with failing("WorkerStarting"):
        await bench.invoke(registration)
    assert 1.5 < time.monotonic() - began < 4
    await bench.unregister(epoch)


async def test_three_failed_replacements_lose_the_registration(bench: Bench) -> None:
    """C21, C26"""
    epoch, registration = await bench.register("load-once", env={"MARK": str(bench.tmp / "mark")})
    waiting = asyncio.create_task(bench.client.function_status(registration, wait_ms=20_000))
    async with failing("WorkerCrashed"):
        await bench.invoke(registration)
    status = await waiting
    assert status.state == "lost" and status.reason == "ImportFailed" and status.message
    async with failing("FailedPrecondition"):
        await bench.invoke(registration)
    assert [held.open for held in await bench.held(epoch.run_uid)] in ([False], [])
    assert (await bench.unregister(epoch)).gone


async def test_what_a_handler_leaves_running_does_not_delay_the_answer(bench: Bench) -> None:
    """C22"""
    _, registration = await bench.register("holder")
    began = time.monotonic()
    for _ in range(3):
        assert await bench.invoke(registration) == {"outputs": {"left": "one"}}
    assert time.monotonic() - began < 5


@each("program", ["forger", "closes"])
async def test_what_a_handler_writes_or_closes_does_not_change_the_answer(bench: Bench, program: str) -> None:
    """C22"""
    _, registration = await bench.register(program)
    for _ in range(5):
        assert await bench.invoke(registration) == {"outputs": {"true": 1}}


async def test_each_line_is_logged_with_its_invocation(bench: Bench) -> None:
    """C23"""
    epoch, registration = await bench.register("prints")
    await bench.invoke(registration, {"lines": 3}, invocation="first")
    await bench.invoke(registration, {"lines": 1}, invocation="second")
    lines = [(entry["invocation"], entry["stream"], entry["line"]) for entry in bench.log(epoch.run_uid)]
    assert [x for x in lines if x[:2] == ("first", "stdout")] == [
        ("first", "stdout", text) for text in ("line 0", "line 1", "line 2", "no newline")
    ]
    assert [x for x in lines if x[:2] == ("second", "stdout")] == [
        ("second", "stdout", text) for text in ("line 0", "no newline")
    ]
    assert [x for x in lines if x[1] == "stderr"] == [(i, "stderr", "error line") for i in ("first", "second")]
    assert all(entry["attempt"] == 1 for entry in bench.log(epoch.run_uid))


async def test_a_log_has_a_bound_and_says_so(bench: Bench) -> None:
    """C23"""
    epoch, registration = await bench.register("prints")
    await bench.invoke(registration, {"lines": 150_000}, timeout=60)
    entries = bench.log(epoch.run_uid)
    assert sum(len(entry["line"]) for entry in entries) < 1_300_000
    assert any(entry["cut"] and "cut" in entry["line"] for entry in entries)


async def test_unregister_closes_at_once_and_lets_the_call_finish(bench: Bench) -> None:
    """C24"""
    epoch, registration = await bench.register("wait", concurrency=2)
    call = await hold(bench, registration)
    reply = await bench.unregister(epoch, wait_ms=0)
    assert reply.held and not reply.gone and reply.in_flight == 1
    async with failing("FailedPrecondition"):
        await bench.invoke(registration, {})
    assert [held.open for held in await bench.held(epoch.run_uid)] == [False]
    call.release()
    assert "pid" in (await call.task)["outputs"]  # type: ignore[index]
    assert (await bench.unregister(epoch)).gone
    assert await bench.held(epoch.run_uid) == []
    async with failing("FailedPrecondition"):
        await bench.register("wait", epoch=epoch)


async def test_a_drain_that_is_over_ends_the_call(bench: Bench) -> None:
    """C24"""
    epoch, registration = await bench.register("wait")
    call = await hold(bench, registration)
    reply = await bench.unregister(epoch, drain_ms=50)
    assert reply.gone
    async with failing("OutcomeUnknown"):
        await call.task


async def test_unregister_of_what_is_absent_leaves_a_tombstone(bench: Bench) -> None:
    """C24"""
    epoch = bench.epoch(attempt=2)
    reply = await bench.unregister(epoch)
    assert not reply.held and reply.gone
    for attempt in (1, 2):
        async with failing("FailedPrecondition"):
            await bench.register("echo", epoch=bench.epoch(epoch.run_uid, attempt))
    await bench.register("echo", epoch=bench.epoch(epoch.run_uid, 3))


async def test_unregister_ends_a_load(bench: Bench) -> None:
    """C24"""
    head = bench.function("load-hangs")
    loading = asyncio.create_task(bench.client.register_function(head, timeout=30))
    await until_held(bench, head.epoch.run_uid)
    assert (await bench.unregister(head.epoch)).gone
    async with failing("FailedPrecondition"):
        await loading


async def test_unregister_if_idle_is_one_decision(bench: Bench) -> None:
    """C25"""
    epoch, registration = await bench.register("wait")
    call = await hold(bench, registration)
    async with failing("StillActive"):
        await bench.unregister(epoch, if_idle_for_ms=1)
    call.release()
    await call.task
    async with failing("StillActive"):
        await bench.unregister(epoch, if_idle_for_ms=60_000)
    assert (await bench.client.function_status(registration)).state == "ready"
    await asyncio.sleep(0.01)
    assert (await bench.unregister(epoch, if_idle_for_ms=5)).gone


async def test_the_idle_clock_starts_at_the_last_finish_and_anew_on_request(bench: Bench) -> None:
    """C25, C26"""
    _, registration = await bench.register("echo")
    await asyncio.sleep(0.05)
    before = (await bench.client.function_status(registration)).idle_for_ms
    assert before >= 40
    assert (await bench.client.function_status(registration, restart_idle=True)).idle_for_ms < before
    await asyncio.sleep(0.05)
    await bench.invoke(registration)
    assert (await bench.client.function_status(registration)).idle_for_ms < 40


async def test_a_waiting_status_returns_when_the_idle_timeout_has_passed(bench: Bench) -> None:
    """C26"""
    _, registration = await bench.register("echo", idle_timeout_ms=200)
    began = time.monotonic()
    status = await bench.client.function_status(registration, wait_ms=20_000)
    assert status.state == "ready" and status.idle_for_ms >= 200
    assert time.monotonic() - began < 2


async def test_what_a_call_leaves_in_its_folder_is_handed_over_with_its_answer(bench: Bench) -> None:
    """C33"""
    epoch, registration = await bench.register("artifact")
    kept = Path(bench.source(epoch, {})).parent / "artifacts"
    taken = set()
    for number in range(3):
        head, _ = await bench.call(registration, {"put": f"text {number}"})
        assert head.artifacts and set(head.artifacts) <= set("0123456789-")
        folder = kept / head.artifacts
        assert [path.name for path in folder.iterdir()] == ["a.txt"]
        assert (folder / "a.txt").read_text().strip() == f"text {number}"
        taken.add(head.artifacts)
    assert len(taken) == 3
    head, answer = await bench.call(registration, {})
    assert head.artifacts == "" and answer["outputs"] == {"left": 0}
    async with failing("HandlerFailed"):
        await bench.call(registration, {"put": "lost", "fail": 1})
    head, answer = await bench.call(registration, {})
    assert head.artifacts == "" and answer["outputs"] == {"left": 0}
    await bench.unregister(epoch)
    assert (kept / min(taken) / "a.txt").exists()
