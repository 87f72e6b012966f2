"""`krt-alive`, the liveness probe of a `runtime` container: one Alive over the socket, exit status 0 if it is answered.

A process of its own every few seconds, so it imports the frame and the standard library only; a third party's image may
take this file as it is, or do the same in its own language. The embedded node asks without a process.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Final

from runtimes.contract.frames import REQUEST, RESPONSE, ProtocolError, decode, encode

SOCKET: Final = "/run/kruntimes/runtime.sock"
TIMEOUT_S: Final = 4.0
"""Below the probe's own timeout of 5 s, so that the reason is still told."""
HEAD: Final = b"\x92\xa5Alive\x80"
"""msgpack for ["Alive", {}]."""


def main() -> int:
    """0: alive. 1: not, and stderr says why."""
    path = os.environ.get("KRUNTIMES_SOCKET", SOCKET)
    try:
        kind, head = ask(path)
    except (OSError, ProtocolError) as error:
        sys.stderr.write(f"no answer at {path}: {error}\n")
        return 1
    if kind != RESPONSE:
        sys.stderr.write(f"the Runtime Server is not alive: {head[:512]!r}\n")
        return 1
    return 0


def ask(path: str) -> tuple[int, bytes]:
    """Kind and head of the server's answer to one Alive. Raises OSError or ProtocolError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(path)
        connection.sendall(encode(REQUEST, 1, int(TIMEOUT_S * 1000), HEAD, 0, b""))
        buffer = b""
        offset = 0
        while True:
            while (decoded := decode(buffer, offset)) is not None:
                (kind, stream, _, head, _, _), offset = decoded
                if stream == 1:
                    return kind, head
            more = connection.recv(65_536)
            if not more:
                raise ConnectionResetError("the connection was closed")
            buffer += more


if __name__ == "__main__":
    sys.exit(main())
