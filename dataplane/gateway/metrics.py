"""What the gateway counts, and how Prometheus reads it.

Here: plain counters on the hot path, turned into Prometheus families only when scraped. No UID, name or path is
a label. Not here: the metrics port (`main`).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from controlplane.kube.clock import Clock
from dataplane.gateway.answer import Answer

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """Counters of one process. `gauges` are asked when scraped: name → (help, value)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: Counter[tuple[int, str]] = Counter()
        self._buckets = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self._counters: dict[str, tuple[str, Callable[[], float]]] = {}

    def answered(self, answer: Answer, since_s: float) -> None:
        """One response has been decided; `since_s` is the monotonic second at which its request began."""
        duration_s = self._clock.monotonic() - since_s
        self._answers[answer.status, answer.reason] += 1
        self._buckets[bisect_left(BUCKETS_S, duration_s)] += 1
        self._sum_s += duration_s

    def gauge(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """Export `value()` under that name."""
        self._gauges[name] = (documentation, value)

    def counter(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """Export `value()`, which only grows, under that name."""
        self._counters[name] = (documentation, value)

    def collect(self) -> Iterable[Metric]:
        """The families, for a Prometheus registry."""
        answers = CounterMetricFamily(
            "kruntimes_gateway_responses", "Responses by status and reason.", labels=("code", "reason")
        )
        for (status, reason), count in self._answers.items():
            answers.add_metric((str(status), reason), count)
        yield answers
        total = 0
        buckets = []
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), self._buckets, strict=True):
            total += count
            buckets.append((bound, total))
        histogram = HistogramMetricFamily(
            "kruntimes_gateway_request_duration_seconds", "From the head of a request to its answer."
        )
        histogram.add_metric((), buckets, self._sum_s)
        yield histogram
        for name, (documentation, value) in self._gauges.items():
            yield GaugeMetricFamily(name, documentation, value())
        for name, (documentation, value) in self._counters.items():
            yield CounterMetricFamily(name, documentation, value())
