"""Text forms of the Kubernetes API and ours: times, durations, quantities, labels. Pure functions.

Times inside are integers of microseconds (Unix), durations integers of milliseconds; strings exist only at the edge.
Every function raises ValueError on text it does not accept.
"""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final

DURATION_MAX_MS: Final = 8_760 * 3_600_000  # one year, spec.timeout's bound
QUANTITY_MAX_CHARS: Final = 64  # far above any quantity in use; bounds the work of a hostile one

_DURATION: Final = re.compile(r"(?:([0-9]{1,7})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")
_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([eE][+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i))?"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SUFFIX: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def format_time(us: int) -> str:
    """Unix microseconds as RFC 3339 in UTC with six digits, as MicroTime wants it: `2026-01-02T03:04:05.000006Z`."""
    seconds, micros = divmod(us, 1_000_000)
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{micros:06d}Z"


def format_time_seconds(us: int) -> str:
    """Unix microseconds as RFC 3339 in UTC with whole seconds, as metav1.Time wants it."""
    return f"{_EPOCH + timedelta(seconds=us // 1_000_000):%Y-%m-%dT%H:%M:%SZ}"


def parse_time_us(text: str) -> int:
    """Unix microseconds of an RFC 3339 time; digits beyond the sixth are cut."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"not an RFC 3339 time: {text[:64]!r}")
    day, clock, fraction, zone = found.groups()
    moment = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone in 'Zz' else zone}")
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + int(f"{fraction or '':0<6}"[:6])


def parse_time_us_or_none(text: str | None) -> int | None:
    """As `parse_time_us`; None for an absent time."""
    return None if text is None else parse_time_us(text)


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `1h2m3s`: whole hours, minutes and seconds in that order, at least one of them, up to a year."""
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        raise ValueError(f"not a duration such as 1h2m3s: {text[:64]!r}")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    ms = (hours * 3_600 + minutes * 60 + seconds) * 1_000
    if ms > DURATION_MAX_MS:
        raise ValueError(f"longer than 8760h: {text[:64]!r}")
    return ms


def format_duration(ms: int) -> str:
    """The shortest `1h2m3s` form of whole seconds; `0s` for less than one."""
    minutes, seconds = divmod(ms // 1_000, 60)
    hours, minutes = divmod(minutes, 60)
    text = "".join(f"{value}{unit}" for value, unit in ((hours, "h"), (minutes, "m"), (seconds, "s")) if value)
    return text or "0s"


def parse_quantity(value: str | int | float) -> Decimal:
    """The exact value of a Kubernetes quantity: `100m`, `2`, `1Gi`, `1e3`. JSON numbers are accepted too."""
    text = str(value)
    found = _QUANTITY.fullmatch(text) if len(text) <= QUANTITY_MAX_CHARS else None
    if found is None:
        raise ValueError(f"not a quantity: {text[:64]!r}")
    number, exponent, suffix = found.groups()
    try:
        return Decimal(number + exponent) if exponent else Decimal(number) * _SUFFIX[suffix or ""]
    except InvalidOperation as error:
        raise ValueError(f"not a quantity: {text!r}") from error


def whole_quantity(value: str | int | float) -> int:
    """A quantity that must be a whole number, such as slots: `1000m` is 1, `500m` is an error."""
    number = parse_quantity(value)
    if number != number.to_integral_value():
        raise ValueError(f"not a whole quantity: {value!r}")
    return int(number)


def selector_text(labels: dict[str, str]) -> str:
    """Equality labels as a `labelSelector` or `fieldSelector`."""
    return ",".join(f"{key}={value}" for key, value in labels.items())
