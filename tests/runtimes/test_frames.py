"""The frame codec: any cutting of the bytes gives the same frames; what breaks a bound is refused at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimes.contract import frames
from runtimes.contract.limits import BODY_MAX_BYTES, CHUNK_MAX_BYTES, HEAD_MAX_BYTES

FRAME = st.tuples(
    st.sampled_from(list(frames.Kind)),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=200),
    st.integers(0, BODY_MAX_BYTES),
    st.binary(max_size=300),
)


@given(st.lists(FRAME, max_size=6), st.integers(1, 50))
def test_frames_cut_anywhere_come_out_as_they_went_in(
    sent: list[tuple[int, int, int, bytes, int, bytes]], cut: int
) -> None:
    wire = b"".join(frames.encode(*frame) for frame in sent)
    buffer, received = bytearray(), []
    for start in range(0, len(wire), cut):
        buffer += wire[start : start + cut]
        offset = 0
        while (decoded := frames.decode(buffer, offset)) is not None:
            frame, offset = decoded
            received.append(tuple(frame))
        del buffer[:offset]
    assert received == [tuple(frame) for frame in sent]
    assert not buffer


@pytest.mark.parametrize(
    "header",
    [
        pytest.param((21 + HEAD_MAX_BYTES + 1, 1, 1, 0, HEAD_MAX_BYTES + 1, 0), id="head too large"),
        pytest.param((21 + CHUNK_MAX_BYTES + 1, 4, 1, 0, 0, 0), id="chunk too large"),
        pytest.param((21, 1, 1, 0, 0, BODY_MAX_BYTES + 1), id="body too large"),
        pytest.param((20, 1, 1, 0, 0, 0), id="length below the header"),
        pytest.param((25, 1, 1, 0, 100, 0), id="head longer than the frame"),
    ],
)
def test_a_header_that_breaks_a_bound_is_refused_before_its_bytes_arrive(header: tuple[int, ...]) -> None:
    with pytest.raises(frames.ProtocolError):
        frames.decode(frames.HEADER.pack(*header), 0)


@given(st.binary(max_size=64))
def test_any_bytes_decode_wait_or_are_refused(data: bytes) -> None:
    try:
        decoded = frames.decode(data, 0)
    except frames.ProtocolError:
        return
    assert decoded is None or decoded[1] <= len(data)
