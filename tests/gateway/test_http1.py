"""The grammar of requests: what is taken, what is refused and why, and that splitting bytes changes nothing."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.gateway.bodies import Malformed
from dataplane.gateway.http1 import Head, RequestParser
from dataplane.gateway.limits import (
    CHUNKS_MAX,
    FIELD_MAX_BYTES,
    FIELDS_MAX,
    HEAD_MAX_BYTES,
    TARGET_MAX_BYTES,
    TRAILER_MAX_BYTES,
)
from runtimes.contract.limits import INVOKE_BODY_MAX_BYTES

Seen = list[tuple[str, bytes | str]]


def parse(*pieces: bytes) -> Seen:
    """Each request as (request line or reason, body, failure of the body, or "incomplete")."""
    parser = RequestParser()
    requests = []
    for piece in pieces:
        request = parser.feed(piece)
        while request is not None:
            requests.append(request)
            request = parser.feed(b"")
    seen: Seen = []
    for head, body in requests:
        if isinstance(head, Malformed):
            seen.append((head.reason.value, b""))
        elif body.failure is not None:
            seen.append((f"{head.method} {head.target}", body.failure.reason.value))
        else:
            seen.append((f"{head.method} {head.target}", body.take() if body.complete else "incomplete"))
    return seen


def request(*fields: str, line: str = "POST /x HTTP/1.1", host: str = "Host: h", body: bytes = b"") -> bytes:
    return "\r\n".join([line, *([host] if host else []), *fields]).encode("latin-1") + b"\r\n\r\n" + body


CHUNKED = "Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (request(), b""),
        (request("Content-Length: 3", body=b"abc"), b"abc"),
        (request("content-length:3", body=b"abc"), b"abc"),
        (request("Content-Length:  3 \t", body=b"abc"), b"abc"),
        (request("Content-Length: 0003", body=b"abc"), b"abc"),
        (request(CHUNKED, body=b"3\r\nabc\r\n0\r\n\r\n"), b"abc"),
        (request(CHUNKED, body=b"1\r\na\r\n002;x=y\r\nbc\r\n0\r\n\r\n"), b"abc"),
        (request(CHUNKED, body=b"3 ; x=y\r\nabc\r\n0\r\n\r\n"), b"abc"),
        (request("Transfer-Encoding: Chunked", body=b"A\r\n0123456789\r\n000\r\nTrailer: x\r\n\r\n"), b"0123456789"),
        (request("X-Odd: \x80\xff", "Empty:"), b""),
        (request("User-Agent: a", "User-Agent: b", "ETag: 1", "ETag: 2"), b""),
        (request(line="POST /x HTTP/1.0", host=""), b""),
        (request(line="POST http://other/x HTTP/1.1"), b""),
        (request("Expect: 100-Continue"), b""),
        (request("Expect: something", line="POST /x HTTP/1.0"), b""),
        (b"\r\n" + request(), b""),
        *(
            (request(host=f"Host: {host}"), b"")
            for host in ("", "a.b:80", "[::1]:443", "127.0.0.1", "a_b", "[fe80::1]")
        ),
    ],
)
def test_good_requests_are_taken_whole(raw: bytes, body: bytes) -> None:
    ((line, seen),) = parse(raw)
    assert line.startswith("POST ")
    assert seen == body


@pytest.mark.parametrize(
    "raw",
    [
        request(host=""),
        request("Host: h"),
        request("host: other"),
        request("Host : h", host=""),
        request(" Host: h"),
        request("X: a", " folded"),
        request("X: a", "\tfolded"),
        request("no colon"),
        request(": empty"),
        request("X\x00: a"),
        request("X: a\x00b"),
        request("X: a\nY: b"),
        request("X: a\rb"),
        request("Xä: a"),
        request("X: \x7f"),
        *(
            request(host=f"Host: {host}")
            for host in ("a b", "a/b", "u@h", "h:port", "h:123456", "[::1", "::1", "h, h", "h#", "h\\")
        ),
        request("Content-Length: 1", "Content-Length: 1", body=b"a"),
        request("Content-Length: 1", "content-length: 2", body=b"a"),
        *(
            request(f"Content-Length: {length}")
            for length in ("", "-1", "+1", "1,1", "0x1", "1 1", "1.0", "٣".encode().decode("latin-1"), "9" * 30)
        ),
        request("Content-Length: 1", CHUNKED, body=b"a"),
        request(CHUNKED, CHUNKED),
        request(CHUNKED, line="POST /x HTTP/1.0"),
        *(
            request(f"Transfer-Encoding: {coding}")
            for coding in ("", ",", "chunked, chunked", "chunked;x", "\x0bchunked")
        ),
        request("Content-Type: a/b", "Content-Type: a/b"),
        request("Authorization: a", "Authorization: b"),
        request("X-Kruntime-Timeout-Ms: 1", "X-Kruntime-Timeout-Ms: 1"),
        request("X-Kruntime-Anything: 1", "x-kruntime-anything: 1"),
        request(line="POST  /x HTTP/1.1"),
        request(line="POST /x HTTP/1.1 "),
        request(line=" POST /x HTTP/1.1"),
        request(line="POST /x"),
        request(line="POST /x http/1.1"),
        request(line="POST /x HTTP/11"),
        request(line="POST /ä HTTP/1.1"),
        request(line="P(ST /x HTTP/1.1"),
        request(line="POST\t/x\tHTTP/1.1"),
        request().replace(b"\r\n", b"\n") + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_what_is_not_exactly_a_request_is_invalid_and_nothing_behind_it_is_read(raw: bytes) -> None:
    assert parse(raw, request()) == [("InvalidRequest", b"")]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (request("Expect: 200-ok"), "ExpectationFailed"),
        (request("Expect: 100-continue, more"), "ExpectationFailed"),
        (request("Transfer-Encoding: gzip, chunked"), "NotImplemented"),
        (request("Transfer-Encoding: identity"), "NotImplemented"),
        (request("Transfer-Encoding: chunked, gzip"), "NotImplemented"),
        (request(line="POST /x HTTP/2.0"), "HTTPVersionNotSupported"),
        (request(line="PRI * HTTP/2.0", host=""), "HTTPVersionNotSupported"),
        (request(line="POST /x HTTP/1.2"), "HTTPVersionNotSupported"),
        (request(line="POST /x HTTP/0.9"), "HTTPVersionNotSupported"),
        (request(line=f"POST /{'x' * TARGET_MAX_BYTES} HTTP/1.1"), "URITooLong"),
        (request(f"X: {'x' * FIELD_MAX_BYTES}"), "HeadersTooLarge"),
        (request(*(f"X-{n}: y" for n in range(FIELDS_MAX))), "HeadersTooLarge"),
        (request("X: " + "x" * 30_000, "Y: " + "y" * 30_000, "Z: " + "z" * 30_000), "HeadersTooLarge"),
        (b"POST /" + b"x" * HEAD_MAX_BYTES, "URITooLong"),
        (request()[:-2] + b"X: " + b"x" * HEAD_MAX_BYTES, "HeadersTooLarge"),
    ],
)
def test_limits_and_what_is_not_served_have_reasons_of_their_own(raw: bytes, reason: str) -> None:
    assert parse(raw, request()) == [(reason, b"")]


def test_the_limits_themselves_are_allowed() -> None:
    fields = [f"X-{n}: y" for n in range(FIELDS_MAX - 1)]
    assert len(parse(request(*fields))) == 1
    assert parse(request("X: " + "x" * (FIELD_MAX_BYTES - 3)))[0][0] == "POST /x"
    assert parse(request(line=f"POST /{'x' * (TARGET_MAX_BYTES - 1)} HTTP/1.1"))[0][1] == b""


@pytest.mark.parametrize(
    "body",
    [
        b"g\r\n",
        b"-1\r\na\r\n",
        b"+1\r\na\r\n",
        b"0x1\r\na\r\n",
        b" 1\r\na\r\n",
        b"\r\n",
        b"1\na\n0\n\n",
        b"1\r\nab\r\n0\r\n\r\n",
        b"1\r\na0\r\n\r\n",
        b"1;x\x00\r\na\r\n0\r\n\r\n",
        b"1 \r\na\r\n0\r\n\r\n",
        b"1\t\r\na\r\n0\r\n\r\n",
        b"0\r\nX: y\r\n folded\r\n\r\n",
        b"0\r\nX: y\nZ: z\r\n\r\n",
        b"F" * 16 + b"\r\n",
        b"1;" + b"x" * 300 + b"\r\na\r\n",
        b"1\r\na\r\n" * (CHUNKS_MAX + 1) + b"0\r\n\r\n",
        b"0\r\nbad trailer\r\n\r\n",
        b"0\r\n" + b"X: y\r\n" * (TRAILER_MAX_BYTES // 4) + b"\r\n",
    ],
)
def test_a_chunked_body_that_is_not_exact_fails_and_ends_the_connection(body: bytes) -> None:
    assert parse(request(CHUNKED, body=body), request()) == [("POST /x", "InvalidRequest")]


def test_pipelined_requests_come_in_order_with_their_own_bodies() -> None:
    raw = request("Content-Length: 1", body=b"a") + request(CHUNKED, body=b"1\r\nb\r\n0\r\n\r\n") + request()
    assert parse(raw) == [("POST /x", b"a"), ("POST /x", b"b"), ("POST /x", b"")]


def test_a_good_request_before_a_bad_one_is_still_a_request() -> None:
    assert parse(request() + b"bad\r\n\r\n") == [("POST /x", b""), ("InvalidRequest", b"")]


def test_a_body_above_the_limit_is_counted_and_not_kept() -> None:
    parser = RequestParser()
    result = parser.feed(request(CHUNKED))
    assert result is not None
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    for _ in range(INVOKE_BODY_MAX_BYTES // 0x10000 + 1):
        parser.feed(chunk)
    body = result[1]
    assert body.too_large
    assert body.take() == b""


def test_connection_options_decide_about_keep_alive() -> None:
    def keeps(*fields: str, version: str = "1.1") -> bool:
        result = RequestParser().feed(request(*fields, line=f"GET / HTTP/{version}"))
        assert result is not None
        assert isinstance(result[0], Head)
        return result[0].keep_alive

    assert keeps()
    assert not keeps("Connection: close")
    assert not keeps("Connection: x", "Connection: Close")
    assert not keeps("Connection: keep-alive, close")
    assert not keeps(version="1.0")
    assert keeps("Connection: Keep-Alive", version="1.0")


SAMPLES = [
    request("Content-Length: 5", body=b"hello") + request(CHUNKED, body=b"3\r\nabc\r\n0\r\nT: x\r\n\r\n") + request(),
    request(CHUNKED, body=b"3\r\nabc\r\nzz\r\n") + request(),
    request("X: a", " b") + request(),
    b"\r\n" + request("Content-Length: 0") + request("Content-Length: 9", body=b"short"),
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SAMPLES), st.lists(st.integers(0, 300), max_size=12))
def test_where_the_network_cuts_bytes_makes_no_difference(sample: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(sample), *(cut for cut in cuts if cut < len(sample))})
    pieces = [sample[start:end] for start, end in itertools.pairwise(edges)]
    assert parse(*pieces) == parse(sample)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(SAMPLES), st.integers(0, 300), st.integers(0, 255))
def test_any_single_wrong_byte_is_answered_or_harmless_and_never_an_exception(
    sample: bytes, position: int, value: int
) -> None:
    changed = bytearray(sample)
    changed[position % len(sample)] = value
    whole = parse(bytes(changed))
    assert parse(*(bytes(changed[i : i + 1]) for i in range(len(changed)))) == whole
