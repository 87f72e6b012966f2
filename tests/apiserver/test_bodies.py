"""Request bodies: JSON, YAML and protobuf, and what a hostile one may not do."""

import struct
from typing import Any

import pytest

from controlplane.embedded.apiserver import core_types, protobuf
from controlplane.embedded.apiserver.errors import ApiError
from controlplane.embedded.apiserver.representation import decode_yaml, duplicate_fields
from tests.apiserver.harness import CONFIG_MAPS, RUNS, Api, run


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | str | bytes) -> bytes:
    """One field of a message, as the wire has it."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value % (1 << 64))
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def enveloped(api_version: str, kind: str, message: bytes) -> bytes:
    return b"k8s\x00" + field(1, field(1, api_version) + field(2, kind)) + field(2, message)


METADATA = field(1, "c") + field(3, "default") + field(11, field(1, "label") + field(2, "x"))


def test_maps_and_metadata_are_decoded() -> None:
    message = field(1, METADATA) + field(2, field(1, "key") + field(2, "value")) + field(4, 1)
    assert protobuf.decode(enveloped("v1", "ConfigMap", message)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": "default", "labels": {"label": "x"}},
        "data": {"key": "value"},
        "immutable": True,
    }


def test_lists_numbers_quantities_and_inlined_messages_are_decoded() -> None:
    quantity = field(1, "memory") + field(2, field(1, "1Gi"))
    resources = field(1, quantity)
    port = field(2, -1) + field(3, 8443)
    probe = field(1, field(1, field(1, "cat"))) + field(2, 5)
    container = field(1, "a") + field(2, "image") + field(6, port) + field(8, resources) + field(11, probe)
    volume = field(1, "v") + field(2, field(2, b""))
    message = field(2, field(1, volume) + field(2, container) + field(4, 0))
    spec = protobuf.decode(enveloped("v1", "Pod", message))["spec"]
    assert spec["volumes"] == [{"name": "v", "emptyDir": {}}]
    assert spec["terminationGracePeriodSeconds"] == 0
    assert spec["containers"] == [
        {
            "name": "a",
            "image": "image",
            "ports": [{"hostPort": -1, "containerPort": 8443}],
            "resources": {"limits": {"memory": "1Gi"}},
            "readinessProbe": {"exec": {"command": ["cat"]}, "initialDelaySeconds": 5},
        }
    ]


def test_times_int_or_strings_and_secrets_are_decoded() -> None:
    time = field(1, 1_767_225_600) + field(2, 5_000)
    lease = protobuf.decode(enveloped("coordination.k8s.io/v1", "Lease", field(2, field(3, time))))
    assert lease["spec"] == {"acquireTime": "2026-01-01T00:00:00.000005Z"}
    port = field(3, 80) + field(4, field(1, 1) + field(3, "http"))
    service = protobuf.decode(enveloped("v1", "Service", field(2, field(1, port))))
    assert service["spec"]["ports"] == [{"port": 80, "targetPort": "http"}]
    numbered = field(3, 80) + field(4, field(2, 8443))
    service = protobuf.decode(enveloped("v1", "Service", field(2, field(1, numbered))))
    assert service["spec"]["ports"][0]["targetPort"] == 8443
    secret = protobuf.decode(enveloped("v1", "Secret", field(2, field(1, "a") + field(2, b"\xff"))))
    assert secret["data"] == {"a": "/w=="}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"k8s",
        b"{}",
        enveloped("v1", "ConfigMap", b"\x0a\xff"),
        enveloped("v1", "ConfigMap", b"\x0a"),
        enveloped("v1", "ConfigMap", b"\x0b\x00"),
        enveloped("v1", "ConfigMap", b"\x08\x01"),
        enveloped("v1", "ConfigMap", b"\xff" * 12),
        enveloped("v1", "Pod", field(2, field(4, b"x"))),
        enveloped("v1", "ConfigMap", field(1, field(1, b"\xff"))),
        enveloped("coordination.k8s.io/v1", "Lease", field(2, field(3, field(1, 1 << 60)))),
    ],
)
def test_a_malformed_message_is_400(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        protobuf.decode(body)
    assert refused.value.code in {400, 415}


def test_any_cut_of_a_message_is_refused_or_decoded_but_never_an_error_of_ours() -> None:
    body = enveloped("v1", "ConfigMap", field(1, METADATA) + field(2, field(1, "key") + field(2, "value")))
    for end in range(len(body)):
        for wrong in (body[:end], body[:end] + struct.pack("B", 0xFF) + body[end + 1 :]):
            try:
                protobuf.decode(wrong)
            except ApiError as error:
                assert error.code in {400, 415}


async def test_protobuf_bodies_are_stored_like_any_other(api: Api) -> None:
    message = field(1, METADATA) + field(2, field(1, "key") + field(2, "value"))
    body = enveloped("v1", "ConfigMap", message)
    answer = await api.call("POST", CONFIG_MAPS, body, content_type=protobuf.MEDIA_TYPE)
    assert answer.ok()["data"] == {"key": "value"}
    assert (await api.get(f"{CONFIG_MAPS}/c")).ok()["metadata"]["labels"] == {"label": "x"}
    body = enveloped("kruntimes.io/v1alpha1", "Run", b"")
    (await api.call("POST", RUNS, body, content_type=protobuf.MEDIA_TYPE)).refused(415)


def test_every_type_that_a_field_names_is_known() -> None:
    known = {"string", "bytes", "int", "bool", "double", "Time", "MicroTime", "Quantity", "IntOrString", "FieldsV1"}
    known |= {"ExtraValue", "JSON", "JSONSchemaPropsOrArray", "JSONSchemaPropsOrBool", "JSONSchemaPropsOrStringArray"}
    for name in core_types._lines():
        message = core_types.message(name)
        assert message is not None
        for each in message.numbered.values():
            assert each.type in known or core_types.message(each.type), (name, each)


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        (b'{"a": 1, "b": {"c": 1}}', ()),
        (b'{"a": 1, "a": 2}', ("a",)),
        (b'{"a": {"b": 1, "b": 2}, "l": [{"x": 1}, {"x": 1, "x": 1}]}', ("a.b", "l[1].x")),
        (b"a: 1", ()),
        (b"{", ()),
    ],
)
def test_names_that_stand_twice_are_found(body: bytes, paths: tuple[str, ...]) -> None:
    assert duplicate_fields(body) == paths


async def test_a_field_that_stands_twice_is_refused_or_warned_of(api: Api) -> None:
    body = b'{"metadata": {"name": "c"}, "data": {"a": "1"}, "data": {"a": "2"}}'
    status = (await api.post(f"{CONFIG_MAPS}?fieldValidation=Strict", body)).refused(400, "BadRequest")
    assert 'duplicate field "data"' in status["message"]
    answer = await api.post(CONFIG_MAPS, body)
    assert answer.ok()["data"] == {"a": "2"}
    assert answer.headers["Warning"] == '299 - "duplicate field \\"data\\""'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 2026-01-01", {"a": "2026-01-01"}),
        ("a: yes", {"a": True}),
        ('{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
    ],
)
def test_yaml_is_read_as_json(text: str, expected: Any) -> None:
    assert decode_yaml(text.encode()) == expected


@pytest.mark.parametrize(
    "text", ["a: &x 1\nb: *x\n", "a: [", "\xc3(", "1: {2: 3}\n? [a]\n: b\n", "- !!python/object:os.x {}"]
)
def test_yaml_that_unfolds_or_is_none_is_refused(text: str) -> None:
    with pytest.raises(ApiError) as refused:
        decode_yaml(text.encode("latin-1"))
    assert refused.value.code == 400


async def test_a_body_that_nests_without_end_is_refused(api: Api) -> None:
    for depth in (500, 100_000):
        nested = b'{"a":' * depth + b"1" + b"}" * depth
        answer = await api.post(CONFIG_MAPS, b'{"metadata": {"name": "c"}, "data": ' + nested + b"}")
        answer.refused(400)
    deep: Any = 1
    for _ in range(300):
        deep = {"a": deep}
    item = run("a")
    item["spec"]["deep"] = deep
    assert (await api.post(RUNS, item)).code in {201, 400}
    (await api.get("/readyz")).body.decode()
