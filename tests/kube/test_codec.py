"""Text forms: times to the microsecond, durations, quantities; what is not one is refused."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.kube.codec import (
    format_duration,
    format_time,
    format_time_seconds,
    parse_duration_ms,
    parse_quantity,
    parse_time_us,
    whole_quantity,
)
from statemachine.text import cut_bytes


@given(st.integers(min_value=0, max_value=253_402_300_799_999_999))
def test_a_time_comes_back_to_the_microsecond(us: int) -> None:
    assert parse_time_us(format_time(us)) == us
    assert parse_time_us(format_time_seconds(us)) == us // 1_000_000 * 1_000_000


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.1Z", 100_000),
        ("1970-01-01T00:00:00.123456789Z", 123_456),
        ("1970-01-01T01:00:00+01:00", 0),
        ("2026-01-02t03:04:05.000006z", 1_767_323_045_000_006),
    ],
)
def test_times_in_every_form_of_the_api(text: str, us: int) -> None:
    assert parse_time_us(text) == us


@pytest.mark.parametrize("text", ["", "now", "2026-01-02", "2026-13-01T00:00:00Z", "2026-01-02T03:04:05", "x" * 1000])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_time_us(text)


@pytest.mark.parametrize(
    ("text", "ms"), [("1s", 1000), ("90s", 90_000), ("1h2m3s", 3_723_000), ("1h", 3_600_000), ("8760h", 31_536_000_000)]
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "1", "s", "1.5s", "1m1h", "-1s", "1s ", "8761h", "99999999999s", "1S", "1h1h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_duration_ms(text)


@given(st.integers(min_value=1, max_value=8760 * 3600))
def test_a_duration_comes_back(seconds: int) -> None:
    assert parse_duration_ms(format_duration(seconds * 1000)) == seconds * 1000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", Decimal(1)),
        (2, Decimal(2)),
        ("1000m", Decimal(1)),
        ("100m", Decimal("0.1")),
        ("1Ki", Decimal(1024)),
        ("1.5Gi", Decimal(1610612736)),
        ("1e3", Decimal(1000)),
        ("1E3", Decimal(1000)),
        ("1E", Decimal(10**18)),
        ("-1k", Decimal(-1000)),
        (".5", Decimal("0.5")),
    ],
)
def test_quantities(text: str | int, value: Decimal) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "one", "1 ", "1kk", "0x1", "1e9999", "NaN", "inf", "1" * 100, "--1", "1Zi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_quantity(text)


def test_slots_are_whole() -> None:
    assert whole_quantity("1000m") == 1
    with pytest.raises(ValueError, match="whole"):
        whole_quantity("500m")


@given(st.text(), st.integers(min_value=3, max_value=64))
def test_a_cut_text_fits_and_is_text(text: str, limit: int) -> None:
    assert len(cut_bytes(text, limit).encode()) <= limit
