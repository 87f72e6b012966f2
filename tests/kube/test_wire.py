"""Bytes to structs: whatever comes, either the answer or an error of ours."""

import contextlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.kube import wire
from controlplane.kube.errors import KubeError, Malformed
from controlplane.kube.resources import CONFIGMAPS, PODS, RUNS
from controlplane.kube.types import ConfigMap, Lease, LeaseSpec, ObjectMeta
from tests.kit.builders import function_run, runtime_pod

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["metadata", "spec", "uid", "items"]), inner)
    ),
    max_leaves=12,
)
documents = st.one_of(
    st.binary(max_size=64),
    values.map(msgspec.json.encode),
    values.map(lambda value: msgspec.json.encode({"type": "ADDED", "object": value})),
)


@settings(max_examples=150)
@given(raw=documents)
def test_no_bytes_raise_anything_but_our_errors(raw: bytes) -> None:
    for kind in (CONFIGMAPS, PODS, RUNS, RUNS.untyped()):
        with contextlib.suppress(KubeError):
            wire.decode(kind.type, raw)
        with contextlib.suppress(KubeError):
            wire.decode_page(kind, raw)
        with contextlib.suppress(KubeError):
            wire.decode_event(kind, raw)
    assert wire.error_from(500, raw, None).status.code == 500


@pytest.mark.parametrize("head", [b"", b'{"metadata":{"x":', b'{"type":"ADDED","object":{"x":', b'{"items":[{"x":'])
def test_deep_nesting_is_malformed(head: bytes) -> None:
    raw = head + b"[" * 100_000
    for decoding in (
        lambda: wire.decode(CONFIGMAPS.type, raw),
        lambda: wire.decode_page(CONFIGMAPS, raw),
        lambda: wire.decode_event(CONFIGMAPS.untyped(), raw),
    ):
        with pytest.raises(Malformed):
            decoding()
    assert wire.error_from(502, raw, None).status.code == 502


@settings(max_examples=80)
@given(st.data())
def test_an_event_cut_or_changed_anywhere_is_an_event_or_malformed(data: st.DataObject) -> None:
    raw = bytearray(b'{"type":"MODIFIED","object":' + wire.encode(PODS, runtime_pod()) + b"}")
    position = data.draw(st.integers(min_value=0, max_value=len(raw) - 1))
    if data.draw(st.booleans()):
        del raw[position:]
    else:
        raw[position] = data.draw(st.integers(min_value=0, max_value=255))
    with contextlib.suppress(KubeError):
        wire.decode_event(PODS, bytes(raw))


def test_what_we_send_says_its_kind_even_where_it_is_the_default() -> None:
    lease = Lease(metadata=ObjectMeta(name="l"), spec=LeaseSpec(holder_identity="me"))
    sent = msgspec.json.decode(wire.encode(CONFIGMAPS, ConfigMap(metadata=ObjectMeta(name="c"))))
    assert sent == {"metadata": {"name": "c"}, "apiVersion": "v1", "kind": "ConfigMap"}
    read_back = msgspec.json.decode(msgspec.json.encode(lease), type=Lease)
    assert b'"holderIdentity":"me"' in wire.encode(RUNS, read_back)


def test_an_object_that_does_not_decode_is_malformed_and_retryable() -> None:
    with pytest.raises(Malformed) as caught:
        wire.decode_event(RUNS, b'{"type":"ADDED","object":{"metadata":{},"spec":5}}')
    assert caught.value.retryable


def test_a_run_of_a_later_version_decodes_with_what_is_known() -> None:
    raw = msgspec.json.decode(wire.encode(RUNS, function_run()))
    raw["spec"]["somethingNew"] = {"a": [1, 2]}
    assert wire.decode(RUNS.type, msgspec.json.encode(raw)).spec == function_run().spec
