"""One HTTPS exchange over the standard library.

`krt invoke` is a process per call, and so is `krt get`: what they import is what they cost, so they do without the
Kubernetes client. Nothing is ever sent twice.
"""

import contextlib
import http.client
import time
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import SplitResult

from controlplane.cli.credentials import Credential
from controlplane.cli.failure import CANNOT_CONNECT, TIMED_OUT, Failure
from controlplane.cli.tls import Dial, Trust, address, connect

ANSWER_MAX_BYTES: Final = 64 * 1024 * 1024  # a page of 500 of the largest Runs; an answer to a call is at most 1 MiB


class Answer(NamedTuple):
    """What came back. `tls` holds facts of the connection, `seconds` how long it took since the connection was begun or
    the request sent."""

    status: int
    headers: dict[str, str]
    body: bytes
    tls: dict[str, str]
    seconds: float


class Link:
    """One connection to one server, for one exchange after the other."""

    def __init__(self, parts: SplitResult, credential: Credential, trust: Trust, dial: Dial) -> None:
        """Connect. Failure, exit code 9, when that is not possible."""
        self.host, self.port = address(parts)
        self._began = time.monotonic()
        self._authorization = credential.authorization
        self._socket, self._tls = connect(parts, credential, trust, dial)
        self._connection = http.client.HTTPConnection(self.host, self.port)
        self._connection.default_port = 443 if parts.scheme == "https" else 80  # what a Host header leaves out
        self._connection.sock = self._socket
        self.usable = True

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None = None, timeout: float = 30.0
    ) -> Answer:
        """Send it and read the answer.

        Failure, exit code 9, when the connection is lost before the answer; 8 when none comes in `timeout` seconds.
        """
        where = f"{self.host}:{self.port}"
        sent = dict(headers)
        if self._authorization is not None:
            sent["Authorization"] = self._authorization
        self.usable = False
        try:
            self._socket.settimeout(timeout)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused early: the answer may be there
                self._connection.request(method, target, body=body, headers=sent)
            answer = self._connection.getresponse()
            content = answer.read(ANSWER_MAX_BYTES + 1)
            rest = answer.read(1) if len(content) <= ANSWER_MAX_BYTES else b"more"
        except TimeoutError as error:
            raise Failure("TimedOut", f"{where} did not answer within {timeout:g} s", TIMED_OUT) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            message = f"the connection to {where} was lost before the answer: {error or type(error).__name__}"
            raise Failure("OutcomeUnknown", message, CANNOT_CONNECT) from error
        if rest:
            raise Failure("AnswerTooLarge", f"{where} answered with more than {ANSWER_MAX_BYTES} bytes")
        self.usable = not answer.will_close
        found = {name.lower(): value for name, value in answer.getheaders()}
        began, self._began = self._began, 0.0
        return Answer(answer.status, found, content, self._tls, time.monotonic() - began)

    def close(self) -> None:
        """End the connection."""
        self.usable = False
        self._connection.close()


def request(
    method: str,
    parts: SplitResult,
    *,
    credential: Credential,
    trust: Trust,
    headers: Mapping[str, str],
    dial: Dial,
    body: bytes | None = None,
    timeout: float = 30.0,
) -> Answer:
    """One exchange on a connection of its own. Failures as those of `Link`."""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with contextlib.closing(Link(parts, credential, trust, dial)) as link:
        return link.send(method, target, headers, body, timeout)
