"""Bytes of strangers, decoded: each decoder answers in the one way that its caller expects, whatever it is given."""

import asyncio
import base64
from collections.abc import Callable
from math import inf
from typing import Any

import msgspec
import pytest

from dataplane.gateway.credentials import client_certificate, token_claims
from dataplane.gateway.forward import Ended, outcome_of
from dataplane.gateway.tables import BadTable, decode_line, decode_table
from dataplane.runtimed.answers import ResultRefused, with_artifacts
from dataplane.wire.identity import peer_identity
from dataplane.wire.messages import InvokeReply, InvokeRequest, ModeReply
from runtimes.contract import frames
from runtimes.contract import messages as m
from runtimes.contract.calls import decode_head
from runtimes.contract.frames import ProtocolError
from runtimes.contract.mux import CallError, Reply, encode_head
from runtimes.contract.pending import PendingCalls
from runtimes.server.checks import check_numbers, check_request
from statemachine.reasons import Reason
from tests.wire.fuzzing import Facts, feed, message, open_connection, serving_handler

DEEP = 20_000  # levels: above what any decoder follows, and within the limit of a head
each = pytest.mark.parametrize

JSON: dict[str, bytes] = {
    "lists": b"[" * DEEP + b"]" * DEEP,
    "maps": b'{"x":' * DEEP + b"1" + b"}" * DEEP,
    "an unknown member that nests": b'{"x":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "only openings": b"[" * DEEP,
    "a huge integer": b'{"exp":' + b"9" * 5000 + b"}",
    "no number": b'{"exp":1e400,"aud":NaN}',
    "bad UTF-8": b'{"aud":"\xff\xed\xa0\x80"}',
    "half a pair": b'{"aud":"\\ud800"}',
    "a number": b"1",
    "nothing": b"",
    "zeros": b"\0\0",
    "another type": b'{"aud":5,"exp":[],"type":{},"object":1,"rows":7,"outputs":1,"artifactRefs":{}}',
}
MSGPACK: dict[str, bytes] = {
    "lists": b"\x91" * DEEP + b"\xc0",
    "maps": b"\x81\xa1x" * DEEP + b"\xc0",
    "an unknown member that nests": b"\x81\xa1x" + b"\x91" * DEEP + b"\xc0",
    "only openings": b"\x91" * DEEP,
    "more than is there": b"\xdf\xff\xff\xff\xff",
    "a text of 4 GiB": b"\xdb\xff\xff\xff\xff",
    "bad UTF-8": b"\x81\xa6reason\xa2\xff\xfe",
    "a name in bad UTF-8": b"\x81\xa2\xff\xfe\x01",
    "huge integer": b"\x81\xa6status\xcf" + b"\xff" * 8,
    "an extension": b"\x81\xa6status\xc7\x08\xff" + b"\xff" * 8,
    "a time out of range": b"\xc7\x0c\xff" + b"\xff" * 12,
    "nothing": b"",
    "behind its end": b"\x80\x80",
}


def _told(decode: Callable[[bytes], object], *expected: type[Exception]) -> Callable[[bytes], None]:
    """`decode` returns, or raises one of these and nothing else."""

    def run(data: bytes) -> None:
        try:
            decode(data)
        except expected:
            return

    return run


READ_JSON: dict[str, Callable[[bytes], None]] = {
    "a Table": _told(decode_table, BadTable),
    "a line of a watch": _told(decode_line, BadTable),
    "a result with artifacts": _told(lambda data: with_artifacts(data, ()), ResultRefused),
    "the body of a call": _told(check_request, CallError),
    "its numbers": _told(check_numbers, CallError),
    "claims of a token": _told(lambda data: token_claims(f"a.{base64.urlsafe_b64encode(data).decode()}.c")),
}
READ_MSGPACK: dict[str, Callable[[bytes], None]] = {
    kind.__name__: _told(lambda data, kind=kind: decode_head(data, kind), msgspec.DecodeError)  # type: ignore[misc]
    for kind in (InvokeRequest, InvokeReply, ModeReply, m.InvokeRequest, m.InvokeReply, m.HelloReply, m.ErrorHead)
}


@each("name", JSON)
@each("reader", READ_JSON)
def test_json(reader: str, name: str) -> None:
    READ_JSON[reader](JSON[name])


@each("name", MSGPACK)
@each("reader", READ_MSGPACK)
def test_heads(reader: str, name: str) -> None:
    READ_MSGPACK[reader](MSGPACK[name])


@each("claims", JSON)
def test_claims_that_cannot_be_read_are_those_of_an_opaque_token(claims: str) -> None:
    encoded = base64.urlsafe_b64encode(JSON[claims]).rstrip(b"=").decode()
    assert token_claims(f"a.{encoded}.c") == ((), inf)


@each("token", ["a.=.c", "a..c", "a.ü.c", "a.\ud800.c", "a.b", "....", "a.b.c.d", "a." + "A" * 5 + ".c"])
def test_tokens_of_another_form_are_opaque(token: str) -> None:
    assert token_claims(token) == ((), inf)


@each("name", MSGPACK)
async def test_a_head_that_cannot_be_read_is_answered_or_ends_its_connection(name: str) -> None:
    """As the method and its parameters, and as the parameters alone; nothing is raised into the transport."""
    for head in (MSGPACK[name], encode_head(("Invoke", msgspec.Raw(MSGPACK[name])))):
        connection, wire = open_connection(serving_handler(Facts()))
        feed(connection, message(frames.REQUEST, 1, 30_000, head, b"{}")[0])
        assert wire.ended or connection.requests_in_flight == 0


@each("name", MSGPACK)
async def test_an_answer_that_cannot_be_read_ends_its_call(name: str) -> None:
    outcome = outcome_of(Reply(MSGPACK[name], b"{}"))
    if isinstance(outcome, Ended):
        assert outcome.failure.reason in (Reason.OUTCOME_UNKNOWN, Reason.INTERNAL_ERROR)
    calls = PendingCalls(asyncio.get_running_loop(), lambda stream: None)
    calls.add(1, lambda outcome: None, "Invoke", 30.0)
    try:
        calls.answered(frames.ERROR, 1, MSGPACK[name], b"")
    except ProtocolError:
        assert 1 in calls  # it ends with the connection
    calls.lose("over", set())


class Tls:
    """The TLS object of a peer whose certificate says odd things; `facts` may be an exception."""

    def __init__(self, facts: Any) -> None:
        self._facts = facts

    def getpeercert(self, binary_form: bool = False) -> Any:
        if isinstance(self._facts, Exception):
            raise self._facts
        return b"der" if binary_form else self._facts


COMMON = {"subject": ((("commonName", "jane"),),), "notAfter": "Jan  1 00:00:00 2040 GMT"}


@each(
    "facts",
    [
        COMMON | {"notAfter": "never"},
        COMMON | {"notAfter": ""},
        {"subject": COMMON["subject"]},
        {"subject": ()},
        {"subject": ((("commonName", ""),),)},
        {"subject": ((("commonName", "a"),), (("commonName", "b"),))},
        COMMON | {"subjectAltName": (("URI", "kruntimes://runtimed/a/b/c"),)},
        ValueError("bad time"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad name"),
    ],
)
def test_odd_certificates_are_nobodys(facts: Any) -> None:
    assert client_certificate(Tls(facts)) is None


@each("uri", ["kruntimes://[", "kruntimes://gateway/x", "kruntimes:" + "/" * 9000, "x", "kruntimes://runtimed/a//c"])
def test_odd_names_are_no_identity(uri: str) -> None:
    assert peer_identity(Tls({"subjectAltName": (("URI", uri),)})) is None


def test_a_good_certificate_is_its_users() -> None:
    found = client_certificate(Tls(COMMON))
    assert found is not None and found.user.name == "jane"
