"""A way to the gateway from outside the cluster: a port-forward to one of its Pods, through the Kubernetes API.

Used where the endpoint's name means nothing here, as on a laptop. TLS goes through it end to end, so the gateway still
proves the endpoint's name. The API speaks WebSocket with the subprotocol `v4.channel.k8s.io`: a message begins with its
channel (0 data, 1 errors), and the first one of each channel holds the port only. `invoke` is the only caller.
"""

import base64
import io
import json
import os
import ssl
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, quote, urlencode

from controlplane.cli.failure import NOT_READY, Failure
from controlplane.cli.plain import PlainApi
from controlplane.cli.tls import Dial, address

CHUNK_BYTES: Final = 32 * 1024  # of one message: what a kubelet reads at once
FRAME_MAX_BYTES: Final = 32 * 1024 * 1024  # the bound of Kubernetes' own WebSocket library
HEAD_MAX_LINES: Final = 128
_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10


class Pod(NamedTuple):
    """A gateway Pod and the port that it serves."""

    namespace: str
    name: str
    port: int


def through_a_pod(api: PlainApi, url: SplitResult) -> Dial | None:
    """The way to the gateway of this URL through one of its Pods; None when its host is no Service's name.

    Failure or KubeError when there is no such Pod, or when the caller may not look for it."""
    pod = find_pod(api, *address(url))
    return None if pod is None else lambda _host, _port: Tunnel(api, pod)


def find_pod(api: PlainApi, host: str, port: int) -> Pod | None:
    """A ready Pod behind the Service that `host` names within a cluster; None when it is not the name of one."""
    parts = host.split(".")
    if len(parts) < 3 or parts[2] != "svc":
        return None
    service, namespace = parts[0], parts[1]
    base = f"/api/v1/namespaces/{quote(namespace, safe='')}"
    spec = api.get(f"{base}/services/{quote(service, safe='')}").get("spec") or {}
    labels = ",".join(f"{key}={value}" for key, value in (spec.get("selector") or {}).items())
    target = next((one.get("targetPort", port) for one in spec.get("ports") or () if one.get("port") == port), port)
    pods = api.get(f"{base}/pods", query={"labelSelector": labels}).get("items") or () if labels else ()
    for pod in pods:
        if _is_ready(pod):
            return Pod(namespace, pod["metadata"]["name"], _number(pod, target))
    raise Failure("GatewayNotReady", f"no Pod of Service {namespace}/{service} is ready", NOT_READY)


class Tunnel:
    """The bytes of one forwarded port."""

    def __init__(self, api: PlainApi, pod: Pod) -> None:
        query = urlencode({"ports": pod.port})
        path = f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/pods/{quote(pod.name, safe='')}/portforward?{query}"
        self._socket, host, target, headers = api.open(path)
        self._reader = self._socket.makefile("rb")
        self._begun = {_DATA: False, _ERROR: False}
        try:
            self._upgrade(host, target, headers)
        except BaseException:
            self.close()
            raise

    def secured(self, context: ssl.SSLContext, name: str) -> "Secured":
        """TLS through it, with a server that proves `name`."""
        return Secured(self, context, name)

    def settimeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send it all."""
        for start in range(0, len(data), CHUNK_BYTES):
            self._frame(_BINARY, bytes((_DATA,)) + data[start : start + CHUNK_BYTES])

    def receive(self) -> bytes:
        """What came next; empty at the end. OSError with what the other side says of an error."""
        message = b""
        while True:
            code, final, payload = self._read_frame()
            if code == _CLOSE:
                return b""
            if code == _PING:
                self._frame(_PONG, payload)
                continue
            message += payload
            if not final or not message:
                continue
            channel, content, message = message[0], message[1:], b""
            if not self._begun.get(channel, True):
                self._begun[channel], content = True, content[2:]
            if channel == _ERROR and content:
                raise OSError(f"the port-forward failed: {content[:512].decode('utf-8', 'replace').strip()}")
            if channel == _DATA and content:
                return content

    def _upgrade(self, host: str, target: str, headers: dict[str, str]) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        asked = {
            "Host": host,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": _PROTOCOL,
            **headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in asked.items())
        self._socket.sendall(f"GET {target} HTTP/1.1\r\n{head}\r\n".encode("ascii"))
        status = self._reader.readline(8192).split(b" ", 2)
        length = 0
        for _ in range(HEAD_MAX_LINES):
            line = self._reader.readline(8192).strip()
            if not line:
                break
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length" and value.strip().isdigit():
                length = int(value)
        if len(status) < 2 or status[1] != b"101":
            raise OSError(f"the port-forward was refused: {_refusal(status, self._reader.read(min(length, 65536)))}")

    def _frame(self, code: int, payload: bytes) -> None:
        size, mask = len(payload), os.urandom(4)
        if size < 126:
            head = struct.pack(">BB", 0x80 | code, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack(">BBH", 0x80 | code, 0x80 | 126, size)
        else:
            head = struct.pack(">BBQ", 0x80 | code, 0x80 | 127, size)
        repeated = mask * (size // 4 + 1)
        masked = int.from_bytes(payload, "big") ^ int.from_bytes(repeated[:size], "big")
        self._socket.sendall(head + mask + masked.to_bytes(size, "big"))

    def _read_frame(self) -> tuple[int, bool, bytes]:
        """Operation, whether the message ends here, payload."""
        first = self._reader.read(2)
        if len(first) < 2:
            return _CLOSE, True, b""
        size = first[1] & 0x7F
        if size == 126:
            (size,) = struct.unpack(">H", self._exactly(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self._exactly(8))
        if size > FRAME_MAX_BYTES:
            raise OSError(f"the port-forward sent a frame of {size} bytes")
        return first[0] & 0x0F, bool(first[0] & 0x80), self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data: bytes = self._reader.read(size)
        if len(data) < size:
            raise ConnectionResetError("the port-forward ended within a frame")
        return data


class Secured:
    """TLS over a Tunnel, with what `http.client` asks of a socket: it is closed once its readers are, too."""

    def __init__(self, tunnel: Tunnel, context: ssl.SSLContext, name: str) -> None:
        self._tunnel = tunnel
        self._readers = 0
        self._closing = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._drive(self._tls.do_handshake)
        self.cipher = self._tls.cipher
        self.version = self._tls.version
        self.getpeercert = self._tls.getpeercert

    def sendall(self, data: Any) -> None:
        """Encrypt and send all of it."""
        self._drive(lambda: self._tls.write(data))

    def read(self, size: int) -> bytes:
        """What came, decrypted; empty at the end."""
        try:
            data: bytes = self._drive(lambda: self._tls.read(size))
        except ssl.SSLZeroReturnError:
            return b""
        return data

    def makefile(self, _mode: str) -> io.BufferedReader:
        """A file of what the server answers."""
        self._readers += 1
        return io.BufferedReader(_Reader(self))

    def settimeout(self, seconds: float | None) -> None:
        """Of each wait for the other side."""
        self._tunnel.settimeout(seconds)

    def close(self) -> None:
        self._closing = True
        if self._readers == 0:
            self._tunnel.close()

    def released(self) -> None:
        """A reader is done."""
        self._readers -= 1
        if self._closing:
            self.close()

    def _drive(self, step: Callable[[], Any]) -> Any:
        """Do one step of TLS, moving bytes through the tunnel for as long as it needs some."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._flush()
                if received := self._tunnel.receive():
                    self._incoming.write(received)
                else:
                    self._incoming.write_eof()
                continue
            self._flush()
            return result

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self._tunnel.send(data)


class _Reader(io.RawIOBase):
    def __init__(self, secured: Secured) -> None:
        self._secured = secured

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._secured.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._secured.released()
        super().close()


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    deleting = pod["metadata"].get("deletionTimestamp") is not None
    return not deleting and any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _number(pod: dict[str, Any], target: int | str) -> int:
    """The number of a container's port that may be given by its name."""
    if isinstance(target, int):
        return target
    for container in pod["spec"].get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == target:
                return int(port["containerPort"])
    raise Failure("GatewayNotReady", f"Pod {pod['metadata']['name']} has no port named {target}", NOT_READY)


def _refusal(status: list[bytes], body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return b" ".join(status[1:]).decode("utf-8", "replace").strip() or "no answer"
