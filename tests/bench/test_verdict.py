"""The verdict of the benchmark: a missed budget counts against us only where the machine was ours."""

import pytest

from tests.bench import __main__ as bench
from tests.bench.__main__ import KEPT, MISSED, UNJUDGED, Figure, ratios, report
from tests.bench.machine import BUSY_SHARE, Meter

QUIET, BUSY = 0.0, BUSY_SHARE + 0.01


@pytest.mark.parametrize(
    ("p50", "rps", "code"),
    [
        (Figure(0.9, BUSY), Figure(3.1, BUSY), KEPT),
        (Figure(1.1, QUIET), Figure(3.1, QUIET), MISSED),
        (Figure(0.9, QUIET), Figure(2.9, QUIET), MISSED),
        (Figure(1.1, BUSY), Figure(3.1, QUIET), UNJUDGED),
        (Figure(1.1, BUSY), Figure(2.9, QUIET), MISSED),
    ],
)
def test_a_budget_is_missed_on_a_quiet_machine_only(
    p50: Figure, rps: Figure, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report({"invoke_p50_ratio": p50, "invoke_rps_ratio_16": rps, "no_budget": Figure(1.0, QUIET)}) == code
    said = capsys.readouterr().out
    assert ("MISSED" in said) is (code == MISSED)
    assert len(said.splitlines()) == 3


def test_every_ratio_of_a_row_is_the_median_of_its_rounds_and_has_what_others_took() -> None:
    row = {"name": "small body", "callers": 16, "others_share": 0.2, "ratio": {"p50": 1.0, "p99": 0.5, "rps": 3.5}}
    assert ratios([row]) == {"invoke_p99_ratio_16": Figure(0.5, 0.2), "invoke_rps_ratio_16": Figure(3.5, 0.2)}
    assert set(bench.BUDGETS) >= set(ratios([row]))


def test_what_we_do_ourselves_is_not_taken_by_others() -> None:
    meter = Meter()
    sum(range(3_000_000))
    assert 0.0 <= meter.others() <= 1.0
