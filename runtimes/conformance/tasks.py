"""Tasks: C27 to C32, C34."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from runtimes.conformance.kit import Bench, descendants, each, failing, until
from runtimes.contract import messages as m


async def test_a_task_runs_once_with_arguments_and_outputs(bench: Bench) -> None:
    """C27, C28, C29"""
    epoch, result = await bench.run("outputs", "3", "two words")
    assert result.exit_code == 3
    assert result.outputs == {"b": "x\ny", "a": "2"} and not result.outputs_error
    assert result.stderr_tail == "problem"
    assert 0 < result.started_us <= result.finished_us
    lines = [entry["line"] for entry in bench.log(epoch.run_uid) if entry["stream"] == "stdout"]
    assert lines == [f"hello {bench.dialect.file()} 3 two words"]


async def test_executing_again_starts_nothing(bench: Bench) -> None:
    """C27"""
    head = bench.task("outputs", "0")
    first = await bench.client.execute_task(head)
    assert await bench.client.execute_task(head) == first
    await bench.result(head.epoch)
    assert await bench.client.execute_task(head) == first
    assert (await bench.client.task_status(head.epoch)).state == "exited"
    assert len([e for e in bench.log(head.epoch.run_uid) if e["stream"] == "stdout"]) == 1


async def test_another_digest_or_a_lower_attempt_is_refused(bench: Bench) -> None:
    """C27"""
    mark = bench.tmp / "mark"
    head = bench.task("sleep", env={"MARK": str(mark)}, epoch=bench.epoch(attempt=2))
    await bench.client.execute_task(head)
    async with failing("AlreadyExists"):
        await bench.client.execute_task(bench.task("sleep", "more", epoch=head.epoch))
    async with failing("FailedPrecondition"):
        await bench.client.execute_task(bench.task("sleep", epoch=bench.epoch(head.epoch.run_uid, 1)))
    await bench.client.cancel_task(m.CancelTaskRequest(epoch=head.epoch, grace_ms=0, wait_ms=5000))


async def test_a_file_that_is_not_there_is_named(bench: Bench) -> None:
    """C27"""
    for entrypoint in ("other.x", "../src/../../escape", "/etc/passwd"):
        head = bench.task("outputs", entrypoint=entrypoint)
        async with failing("SourceInvalid") as caught:
            await bench.client.execute_task(head)
        assert entrypoint in caught[0].message
        assert await bench.held(head.epoch.run_uid) == []


async def test_a_task_killed_by_a_signal_reports_it_as_a_shell_does(bench: Bench) -> None:
    """C28"""
    _, result = await bench.run("killed")
    assert result.exit_code == 137


async def test_the_result_is_kept_until_forget(bench: Bench) -> None:
    """C28, C32"""
    epoch, result = await bench.run("outputs", "0")
    assert await bench.result(epoch) == result
    assert [held.open for held in await bench.held(epoch.run_uid)] == [False]
    await bench.client.forget(epoch)
    await bench.client.forget(epoch)
    assert await bench.held(epoch.run_uid) == []
    async with failing("FailedPrecondition"):
        await bench.client.task_status(epoch)
    async with failing("FailedPrecondition"):
        await bench.client.execute_task(bench.task("outputs", "0", epoch=epoch))


async def test_outputs_that_break_a_rule_are_reported_and_not_taken(bench: Bench) -> None:
    """C29"""
    _, result = await bench.run("bad-outputs")
    assert result.exit_code == 0 and result.outputs == {} and "line 1" in result.outputs_error


async def test_cancel_sends_term_and_the_task_may_answer_it(bench: Bench) -> None:
    """C30"""
    mark = bench.tmp / "mark"
    head = bench.task("on-term", env={"MARK": str(mark)})
    await bench.client.execute_task(head)
    await until(mark.exists, "the task started")
    reply = await bench.client.cancel_task(m.CancelTaskRequest(epoch=head.epoch, grace_ms=10_000, wait_ms=5000))
    assert reply.held and reply.gone
    result = await bench.result(head.epoch)
    assert result.exit_code == 7 and result.cancelled


async def test_cancel_kills_what_ignores_term(bench: Bench) -> None:
    """C30"""
    mark = bench.tmp / "mark"
    head = bench.task("ignores-term", env={"MARK": str(mark)})
    await bench.client.execute_task(head)
    await until(mark.exists, "the task started")
    async with failing("FailedPrecondition"):
        await bench.client.forget(head.epoch)
    reply = await bench.client.cancel_task(m.CancelTaskRequest(epoch=head.epoch, grace_ms=100, wait_ms=5000))
    assert reply.gone
    assert (await bench.result(head.epoch)).exit_code == 137


async def test_cancel_of_what_is_absent_leaves_a_tombstone(bench: Bench) -> None:
    """C30"""
    epoch = bench.epoch()
    reply = await bench.client.cancel_task(m.CancelTaskRequest(epoch=epoch))
    assert not reply.held and reply.gone
    async with failing("FailedPrecondition"):
        await bench.client.execute_task(bench.task("outputs", "0", epoch=epoch))


async def test_what_a_task_leaves_running_is_ended_and_holds_nothing_up(bench: Bench) -> None:
    """C31"""
    before = set(descendants(bench.server.pid))
    began = time.monotonic()
    _, result = await bench.run("holder")
    assert result.exit_code == 0 and time.monotonic() - began < 5
    left = {pid: what for pid, what in descendants(bench.server.pid).items() if pid not in before and "sleep" in what}
    assert left == {}


async def test_a_tasks_folders_are_gone_when_it_has_ended(bench: Bench) -> None:
    """C14"""
    head = bench.task("stdin")
    await bench.client.execute_task(head)
    await bench.result(head.epoch)
    assert sorted(path.name for path in Path(head.directory).parent.iterdir()) == ["src"]


async def test_many_tasks_at_once_each_give_their_own_result(bench: Bench) -> None:
    """C28, C1"""
    results = await asyncio.gather(*(bench.run("outputs", str(code)) for code in range(20)))
    assert [result.exit_code for _, result in results] == list(range(20))


@each("code", ["0", "3"])
async def test_what_a_task_leaves_in_its_folder_is_handed_over_with_its_result(bench: Bench, code: str) -> None:
    """C34"""
    epoch, result = await bench.run("artifact", code)
    assert result.exit_code == int(code) and not result.artifacts_error
    folder = Path(bench.source(epoch, {})).parent / "artifacts" / result.artifacts
    assert result.artifacts and (folder / "deep" / "a.txt").read_text().strip() == "text"
    await bench.client.forget(epoch)
    assert folder.exists()


async def test_a_task_that_leaves_nothing_names_no_folder(bench: Bench) -> None:
    """C34"""
    _, result = await bench.run("outputs", "0")
    assert result.artifacts == ""
