"""What a head asks: values, defaults and refusals."""

import re

import pytest

from dataplane.gateway.bodies import Malformed
from dataplane.gateway.http1 import Head, RequestParser
from dataplane.gateway.request import (
    Ask,
    Target,
    ask_of,
    check_fields,
    check_media_type,
    new_invocation_id,
    new_traceparent,
)
from statemachine.run import RunUID
from tests.gateway.stage import PATH, RUN


def head(*fields: str, target: str = PATH) -> Head:
    raw = "\r\n".join([f"POST {target} HTTP/1.1", "Host: h", *fields]).encode("latin-1") + b"\r\n\r\n"
    result = RequestParser().feed(raw)
    assert result is not None
    assert isinstance(result[0], Head)
    return result[0]


def ask(*fields: str, target: str = PATH) -> Ask:
    return ask_of(head(*fields, target=target))


def test_an_invoke_path_names_namespace_runtime_and_uid() -> None:
    assert ask().target == Target("default", "python", RunUID(RUN))
    for target in (PATH + "?x=y", f"https://elsewhere{PATH}", f"http://u:p@[::1]:8{PATH}?", f"HTTPS://x{PATH}"):
        assert ask(target=target).target == Target("default", "python", RunUID(RUN))


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "*",
        "https://host",
        "ftp://host" + PATH,
        "host:443",
        PATH + "/",
        PATH + "#fragment",
        PATH.replace("/v1", "//v1"),
        PATH.replace("/v1", "/v1/../v1"),
        PATH.replace(":invoke", "%3Ainvoke"),
        PATH.replace(":invoke", ":Invoke"),
        PATH.replace("default", "Default"),
        PATH.replace("default", ""),
        PATH.replace("default", "a" * 64),
        PATH.replace("python", "p" * 41),
        PATH.replace("python", "-p"),
        PATH.replace(RUN, ""),
        PATH.replace(RUN, "a" * 65),
        PATH.replace(RUN, "a_b"),
        PATH.replace(RUN, f"{RUN}/{RUN}"),
    ],
)
def test_any_other_path_is_none(target: str) -> None:
    assert ask(target=target).target is None


def test_the_deadline_has_a_default_and_bounds() -> None:
    assert ask().timeout_ms == 30_000
    for text, value in (("1", 1), ("300000", 300_000), ("000005", 5)):
        assert ask(f"X-Kruntime-Timeout-Ms: {text}").timeout_ms == value
    for text in ("", "0", "-1", "+1", "1e3", "300001", "1 000", "9999999999"):
        assert not ask(f"X-Kruntime-Timeout-Ms: {text}").fields_taken
        with pytest.raises(Malformed, match="300000"):
            check_fields(head(f"X-Kruntime-Timeout-Ms: {text}"))


def test_an_id_is_visible_ascii_of_a_bounded_length() -> None:
    for text in ("a", "~!@#$%^&*()", "x" * 128):
        assert ask(f"X-Kruntime-Invocation-ID: {text}").invocation_id == text
    for text in ("", "a b", "x" * 129, "ä"):
        assert ask(f"X-Kruntime-Invocation-ID: {text}").invocation_id is None
        assert not ask(f"X-Kruntime-Invocation-ID: {text}").fields_taken
    assert len({new_invocation_id() for _ in range(100)}) == 100


def test_a_good_trace_goes_on_and_a_bad_one_starts_anew() -> None:
    good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert ask().traceparent is None
    assert ask(f"Traceparent: {good}").traceparent == good
    for bad in ("", "x", good.upper(), good.replace("00-0", "ff-0"), "00-" + "0" * 32 + good[35:], good[:-5]):
        assert ask(f"traceparent: {bad}").traceparent == ""
    for tail in ("-x", "-" + "y" * 72):
        later = "cc" + good[2:] + tail
        assert ask(f"traceparent: {later}").traceparent == good  # what every version begins with
        assert ask(f"traceparent: {good}{tail}").traceparent == ""  # version 00 ends there
    for tail in ("-" + "y" * 73, "-é", "- x", "-\t.", "x", "-" + "y" * 20_000):
        assert ask(f"traceparent: cc{good[2:]}{tail}").traceparent == ""
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-00", new_traceparent())
    assert ask(f"traceparent: {good}", f"traceparent: {good}").traceparent == ""


@pytest.mark.parametrize(
    "value",
    ["application/json", "Application/JSON", "application/json; charset=utf-8", 'application/json;charset="UTF-8"'],
)
def test_json_in_utf_8_is_taken(value: str) -> None:
    assert ask(f"Content-Type: {value}").media_type_taken
    assert ask(f"Content-Type: {value}", "Content-Encoding: identity").media_type_taken


@pytest.mark.parametrize(
    "field",
    [
        "Content-Type: text/json",
        "Content-Type: ",
        "Content-Type: application/json; charset=latin-1",
        "Content-Type: application/json, text/plain",
        "Content-Type: application/jsonx",
        "Content-Encoding: gzip",
        "Content-Encoding: identity, br",
    ],
)
def test_any_other_format_is_not(field: str) -> None:
    assert not ask(field).media_type_taken
    with pytest.raises(Malformed) as caught:
        check_media_type(head(field))
    assert caught.value.reason == "UnsupportedMediaType"


def test_no_content_type_is_taken() -> None:
    assert ask().media_type_taken


def test_a_head_that_is_repeated_is_not_parsed_again_and_one_that_differs_is() -> None:
    parser = RequestParser()
    first = b"POST /a HTTP/1.1\r\nHost: h\r\n\r\n"
    heads = []
    for raw in (first, first, first.replace(b"/a", b"/b"), first):
        result = parser.feed(raw)
        assert result is not None
        heads.append(result[0])
    assert heads[0] is heads[1]
    assert [isinstance(h, Head) and h.target for h in heads] == ["/a", "/a", "/b", "/a"]
