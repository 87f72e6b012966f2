"""What the control plane counts, in a registry of its own. No UID, name or namespace is a label.

`main` serves it; the parts count through the small classes here and never touch prometheus-client themselves.
"""

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from statemachine.run import Phase, Run

BIND_SECONDS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class LoopMetrics:
    """Counted by the loop: Runs by phase, decisions by outcome, time from creation to binding."""

    def __init__(self, registry: CollectorRegistry) -> None:
        runs = Gauge("kruntimes_runs", "Runs by phase, as last seen", ["phase"], registry=registry)
        self._runs: dict[Phase, Gauge] = {phase: runs.labels(phase.value) for phase in Phase if phase is not Phase.GONE}
        self._decisions = Counter(
            "kruntimes_decisions", "Decisions of the control plane by outcome", ["event", "outcome"], registry=registry
        )
        self._cache: dict[tuple[str, str], Counter] = {}
        self._bound = Histogram(
            "kruntimes_bind_seconds",
            "From the first sight of a new Run to the answer that it is bound",
            buckets=BIND_SECONDS,
            registry=registry,
        )

    def observed(self, previous: Run | None, run: Run) -> None:
        """A Run moved from one phase to another, appeared or went."""
        before = None if previous is None or previous.gone else previous.phase
        after = None if run.gone else run.phase
        if before is after:
            return
        if before is not None:
            self._runs[before].dec()
        if after is not None:
            self._runs[after].inc()

    def bound(self, seconds: float) -> None:
        """A new Run got its first Pod this long after it was first seen."""
        self._bound.observe(seconds)

    def decided(self, event: str, outcome: str) -> None:
        """A decision was written, refused, met a conflict, failed, or was dropped from a full inbox."""
        counter = self._cache.get((event, outcome))
        if counter is None:
            counter = self._cache[event, outcome] = self._decisions.labels(event, outcome)
        counter.inc()


def gauge_of(registry: CollectorRegistry, name: str, sentence: str, read: Callable[[], float]) -> None:
    """A gauge whose value is read when it is asked for: costs nothing in between."""
    Gauge(name, sentence, registry=registry).set_function(read)
