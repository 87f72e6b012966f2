"""A bad peer costs its connection and nothing else: a small version of what `scripts/fuzz-wire` does at length."""

import logging
import random
from collections.abc import AsyncIterator

import pytest

from runtimes.contract import frames, inbox, mux
from runtimes.contract.frames import Kind
from tests.wire.fuzzing import BIG, Fuzzer, control, feed, message, open_connection, request, serving_handler
from tests.wire.fuzzing import Facts as OneFunction

SEED = 6


@pytest.fixture
async def fuzzer(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Fuzzer]:
    caplog.set_level(logging.ERROR, "runtimes")
    the_fuzzer = Fuzzer()
    yield the_fuzzer
    the_fuzzer.close()


async def test_a_session_cut_off_anywhere_ends_every_call_once(fuzzer: Fuzzer) -> None:
    await fuzzer.every_prefix(step=3)


async def test_a_session_with_any_byte_changed_ends_every_call_once(fuzzer: Fuzzer) -> None:
    await fuzzer.every_flip(masks=(0xFF,))


async def test_mutated_sessions_disturb_nobody_else(fuzzer: Fuzzer) -> None:
    await fuzzer.mutated(15_000, random.Random(SEED))
    assert fuzzer.ends["server ended"] and fuzzer.ends["server kept"] and fuzzer.ends["caller ended"]


async def test_a_request_that_does_not_rise_ends_the_connection() -> None:
    connection, wire = open_connection(serving_handler(OneFunction()))
    feed(connection, request(5)[0])
    assert not wire.ended
    feed(connection, request(3)[0])
    assert wire.ended


async def test_answers_that_nobody_waits_for_are_not_kept() -> None:
    connection, wire = open_connection(None)
    feed(connection, message(frames.RESPONSE, 99, 0, b"\x80", BIG)[0])
    assert not wire.ended
    assert len(connection._partial) == 0


async def test_what_is_refused_is_not_kept() -> None:
    connection, wire = open_connection(None)  # it takes no requests
    for stream in range(2, 200, 2):
        feed(connection, request(stream, BIG)[0])
    assert not wire.ended
    assert len(connection._partial) == 0
    assert connection._bytes_received == 0


async def test_a_peer_that_asks_and_never_reads_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mux, "QUEUED_FRAMES_MAX", 10)
    connection, wire = open_connection(None)
    connection.pause_writing()
    feed(connection, control(Kind.PING) * 10)
    assert not wire.ended
    feed(connection, control(Kind.PING))
    assert wire.ended


async def test_unfinished_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "ASSEMBLING_BYTES_MAX", 2 * len(BIG))
    connection, wire = open_connection(None)
    ended: list[mux.Outcome] = []
    for _ in range(3):
        connection.start("Invoke", {}, b"", ended.append, timeout=60)
    for stream in (1, 3):
        feed(connection, message(frames.RESPONSE, stream, 0, b"\x80", BIG)[0])
    assert not wire.ended
    feed(connection, message(frames.RESPONSE, 5, 0, b"\x80", BIG)[0])
    assert wire.ended
    connection.connection_lost(None)
    assert len(ended) == 3
