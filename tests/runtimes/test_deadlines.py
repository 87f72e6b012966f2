"""Deadlines by one timer: each expires once, in time, and costs nothing when it is dropped."""

import asyncio
import random

from runtimes.contract.deadlines import EARLY_S, Deadlines


async def test_each_expires_once_and_not_before_its_time() -> None:
    loop = asyncio.get_running_loop()
    began, seen = loop.time(), {}
    done = asyncio.Event()

    def expired(key: int) -> None:
        assert key not in seen
        seen[key] = loop.time() - began
        if len(seen) == 50:
            done.set()

    deadlines: Deadlines[int] = Deadlines(loop, expired)
    wanted = {key: random.Random(key).uniform(0.0, 0.1) for key in range(60)}
    for key, after in wanted.items():
        deadlines.set(key, began + after)
    for key in range(50, 60):
        deadlines.drop(key)
    async with asyncio.timeout(5):
        await done.wait()
    assert set(seen) == set(range(50))
    assert all(seen[key] >= wanted[key] - EARLY_S - 0.001 for key in seen)
    assert len(deadlines) == 0


async def test_an_earlier_one_is_not_kept_waiting_by_a_later_one() -> None:
    loop = asyncio.get_running_loop()
    first: asyncio.Future[str] = loop.create_future()
    deadlines: Deadlines[str] = Deadlines(loop, first.set_result)
    deadlines.set("late", loop.time() + 60)
    deadlines.set("early", loop.time() + 0.01)
    assert await asyncio.wait_for(first, 5) == "early"
    deadlines.close()
    assert len(deadlines) == 0


async def test_one_that_is_set_again_expires_at_its_new_time_only() -> None:
    loop = asyncio.get_running_loop()
    seen: asyncio.Queue[float] = asyncio.Queue()
    deadlines: Deadlines[str] = Deadlines(loop, lambda key: seen.put_nowait(loop.time()))
    began = loop.time()
    deadlines.set("a", began + 0.01)
    deadlines.set("a", began + 0.05)
    async with asyncio.timeout(5):
        assert await seen.get() - began >= 0.05 - EARLY_S - 0.001
    assert seen.empty()


async def test_many_that_end_in_time_cost_the_loop_one_timer() -> None:
    loop = asyncio.get_running_loop()
    made = 0

    class Counting:
        def time(self) -> float:
            return loop.time()

        def call_at(self, at: float, call: object) -> asyncio.TimerHandle:
            nonlocal made
            made += 1
            return loop.call_at(at, call)  # type: ignore[arg-type]

    deadlines: Deadlines[int] = Deadlines(Counting(), lambda key: None)  # type: ignore[arg-type]
    for key in range(1000):
        deadlines.set(key, loop.time() + 30)
        deadlines.drop(key)
    assert made == 1
    deadlines.close()
