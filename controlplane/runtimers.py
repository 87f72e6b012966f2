"""The timers that the lifecycle asks for, per Run: what each one waits for and what it becomes when it fires.

Only `loop` uses it. Moments (backoff, TTL) are kept by the wall clock, and waiting for somebody else (a claim) by the
Vigil: it counts only while this process would have noticed.
"""

from collections.abc import Callable

from controlplane.kube.clock import Clock
from controlplane.timers import Timers, Vigil
from statemachine.commands import SetTimer, Timer
from statemachine.events import ClaimExpired, Event, TtlExpired
from statemachine.run import CLAIM_TIMEOUT_MS, Run, RunUID


class RunTimers:
    """`decide` takes the event of a timer that fired, `due` a Run whose backoff has passed, `run` reads a Run."""

    def __init__(
        self,
        *,
        clock: Clock,
        timers: Timers,
        vigil: Vigil,
        run: Callable[[RunUID], Run | None],
        decide: Callable[[RunUID, Event], None],
        due: Callable[[RunUID], None],
    ) -> None:
        self._clock = clock
        self._timers = timers
        self._vigil = vigil
        self._run = run
        self._decide = decide
        self._due = due

    def set(self, uid: RunUID, command: SetTimer) -> None:
        """Arm a timer of a Run, in place of one of the same name."""
        key = (uid, command.timer)
        match command.timer:
            case Timer.CLAIM:
                left_ms = max(0, (command.due_us - self._clock.now_us()) // 1_000)
                self._vigil.watch(key, left_ms, lambda: self._claim_overdue(uid))
            case Timer.BACKOFF:
                self._timers.set(key, command.due_us, lambda: self._due(uid))
            case Timer.TTL:
                self._timers.set(key, command.due_us, lambda: self._ttl_over(uid))
            case Timer.REGISTRATION | Timer.LIFETIME:
                raise AssertionError("runtimed arms these")

    def drop(self, uid: RunUID, timer: Timer) -> None:
        """Disarm a timer, if it is armed."""
        if timer is Timer.CLAIM:
            self._vigil.drop((uid, timer))
        else:
            self._timers.drop((uid, timer))

    def drop_all(self, uid: RunUID) -> None:
        """The Run is gone."""
        for timer in Timer:
            self.drop(uid, timer)

    def _claim_overdue(self, uid: RunUID) -> None:
        run = self._run(uid)
        if run is not None and run.epoch is not None:
            expired = ClaimExpired(at_us=self._clock.now_us(), epoch=run.epoch, waited_ms=CLAIM_TIMEOUT_MS)
            self._decide(uid, expired)

    def _ttl_over(self, uid: RunUID) -> None:
        self._decide(uid, TtlExpired(at_us=self._clock.now_us()))
