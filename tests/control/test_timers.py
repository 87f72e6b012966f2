"""Timers fire by the wall clock; the vigil counts only time in which the process was awake."""

from controlplane.timers import Timers, Vigil
from tests.control.support import ManualAlarms
from tests.kit.clock import ManualClock


def made() -> tuple[ManualClock, ManualAlarms, list[str]]:
    clock = ManualClock()
    return clock, ManualAlarms(clock), []


async def test_timers_fire_in_order_and_once():
    clock, alarms, rung = made()
    timers = Timers(clock, alarms.call_later)
    now = clock.now_us()
    timers.set("b", now + 2_000_000, lambda: rung.append("b"))
    timers.set("a", now + 1_000_000, lambda: rung.append("a"))
    alarms.pass_time(0.5)
    assert rung == []
    alarms.pass_time(5)
    assert rung == ["a", "b"]
    assert len(timers) == 0 and alarms.armed == 0


async def test_setting_a_timer_again_replaces_it_and_dropping_disarms_it():
    clock, alarms, rung = made()
    timers = Timers(clock, alarms.call_later)
    now = clock.now_us()
    timers.set("a", now + 1_000_000, lambda: rung.append("early"))
    timers.set("a", now + 3_000_000, lambda: rung.append("late"))
    timers.set("b", now + 2_000_000, lambda: rung.append("b"))
    timers.drop("b")
    alarms.pass_time(2.5)
    assert rung == []
    alarms.pass_time(1)
    assert rung == ["late"]
    assert alarms.armed == 0


async def test_a_wall_clock_that_is_set_back_fires_no_timer_early():
    clock, alarms, rung = made()
    timers = Timers(clock, alarms.call_later)
    timers.set("a", clock.now_us() + 10_000_000, lambda: rung.append("a"))
    clock.jump(-60)
    alarms.pass_time(20)
    assert rung == []
    alarms.pass_time(50)
    assert rung == ["a"]


async def test_many_dropped_timers_leave_no_heap_behind():
    clock, alarms, _ = made()
    timers = Timers(clock, alarms.call_later)
    for number in range(10_000):
        timers.set(number, clock.now_us() + 10**12 + number, lambda: None)
        timers.drop(number)
    assert len(timers) == 0
    assert len(timers._deadlines._heap) < 200


async def test_the_vigil_counts_attended_time():
    clock, alarms, rung = made()
    vigil = Vigil(clock, alarms.call_later)
    vigil.watch("a", 30_000, lambda: rung.append("a"))
    alarms.pass_time(29.9)
    assert rung == []
    alarms.pass_time(0.2)
    assert rung == ["a"]
    assert alarms.armed == 0, "nothing watched, nothing armed"


async def test_a_standstill_counts_for_nothing():
    clock, alarms, rung = made()
    vigil = Vigil(clock, alarms.call_later)
    vigil.watch("a", 30_000, lambda: rung.append("a"))
    alarms.pass_time(10)
    alarms.stand_still(3_600)
    assert rung == []
    alarms.pass_time(19)
    assert rung == []
    alarms.pass_time(2)
    assert rung == ["a"]


async def test_time_before_the_first_watch_counts_for_nothing():
    clock, alarms, _ = made()
    vigil = Vigil(clock, alarms.call_later)
    clock.advance(500)
    before = vigil.attended_ms()
    vigil.watch("a", 60_000, lambda: None)
    alarms.pass_time(5)
    assert 4_900 <= vigil.attended_ms() - before <= 5_100


async def test_many_short_pauses_never_add_up_to_more_than_was_attended():
    clock, alarms, rung = made()
    vigil = Vigil(clock, alarms.call_later)
    vigil.watch("a", 10_000, lambda: rung.append("a"))
    for _ in range(100):
        alarms.stand_still(5)
    assert rung == []
