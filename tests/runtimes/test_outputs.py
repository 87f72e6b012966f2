"""$KRUNTIME_OUTPUTS by A5: what is taken, what is refused, and where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimes.server.outputs import OutputsInvalid, parse_outputs


@pytest.mark.parametrize(
    ("data", "outputs"),
    [
        (b"", {}),
        (b"\n\n", {}),
        (b"a=1", {"a": "1"}),
        (b"a=1\n", {"a": "1"}),
        (b"a=b=c\n", {"a": "b=c"}),
        (b"a=\n", {"a": ""}),
        (b"a=1\nb=2\na=3\n", {"b": "2", "a": "3"}),
        (b"a=x<<y\n", {"a": "x<<y"}),
        (b"a<<END\none\ntwo\nEND\nb=1\n", {"a": "one\ntwo", "b": "1"}),
        (b"a<<END\nEND\n", {"a": ""}),
        (b"a<<END\n\nEND", {"a": ""}),
        (b"a<<x=y\nbody\nx=y\n", {"a": "body"}),
        (b"a=1\n\nb=2\n", {"a": "1", "b": "2"}),
        ("ä=ü\n".encode(), {"ä": "ü"}),
        (b"a= spaced \r\n", {"a": " spaced \r"}),
        (b"k=" + b"v" * 4096, {"k": "v" * 4096}),
    ],
)
def test_what_is_taken(data: bytes, outputs: dict[str, str]) -> None:
    assert parse_outputs(data) == outputs


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"a=1\nno equals\n", "line 2"),
        (b"=x\n", "empty"),
        (b"a<<END\nnever ends\n", "no end"),
        (b"a<<\nx\n\n", "no end"),
        (b"a=1\xff\n", "UTF-8"),
        (b"k" * 129 + b"=1\n", "128"),
        (b"k=" + b"v" * 4097, "4096"),
        (b"".join(b"k%d=v\n" % i for i in range(65)), "64"),
        (b"".join(b"k%d=%s\n" % (i, b"v" * 4000) for i in range(9)), "32768"),
        (b"k=v\n" * 70_000, "262144"),
    ],
)
def test_what_is_refused_says_which_rule(data: bytes, says: str) -> None:
    with pytest.raises(OutputsInvalid, match=says):
        parse_outputs(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_taken_or_refused(data: bytes) -> None:
    try:
        outputs = parse_outputs(data)
    except OutputsInvalid as error:
        assert str(error)
    else:
        assert all(outputs)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="=<\n", codec="utf-8"), min_size=1, max_size=9),
        st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=20),
        max_size=9,
    )
)
def test_lines_come_back_as_they_were_written(outputs: dict[str, str]) -> None:
    data = "".join(f"{key}={value}\n" for key, value in outputs.items()).encode()
    assert parse_outputs(data) == outputs
