"""Probes that this node evaluates itself: `cat FILE` for readiness, `krt-alive` for liveness.

Lives here: asking. May not live here: what follows from an answer (`pod` decides, next). A container here is a process
without a file system or a shell of its own, so no other probe can be run; what cannot be asked counts as passed.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from controlplane.embedded.node.environment import PATH_DEFAULTS, SOCKET_VARIABLE, host_path
from controlplane.kube.types import Container, Probe


class Watch(Protocol):
    """`filewatch.FileWatcher.watch`."""

    def __call__(self, file: Path, on_change: Callable[[], None]) -> Callable[[], None]: ...


def ready_file(container: Container, volumes: Path) -> Path | None:
    """The file whose presence means ready, if the readiness probe is of the form `cat FILE` in a volume."""
    probe = container.readiness_probe
    if probe is None or probe.exec is None or len(probe.exec.command) != 2 or probe.exec.command[0] != "cat":
        return None
    return host_path(container, volumes, probe.exec.command[1])


def alive_socket(container: Container, socket_volumes: Path) -> Path | None:
    """The socket to ask, if the liveness probe is `krt-alive` and the socket is in a volume."""
    probe = container.liveness_probe
    if probe is None or probe.exec is None or probe.exec.command != ("krt-alive",):
        return None
    named = next((variable.value for variable in container.env if variable.name == SOCKET_VARIABLE), "")
    return host_path(container, socket_volumes, named or PATH_DEFAULTS[SOCKET_VARIABLE])


class FileReadiness:
    """Follows a file; `on_change` hears whether the container is ready, at once and at each change."""

    def __init__(self, file: Path, watch: Watch, on_change: Callable[[bool], None]) -> None:
        self._file = file
        self._on_change = on_change
        self._cancel = watch(file, self._look)
        self._look()

    def close(self) -> None:
        """Stop following."""
        self._cancel()

    def _look(self) -> None:
        self._on_change(self._file.exists())


class Liveness:
    """Asks the Runtime Server `Alive`; calls `on_dead` once after `failureThreshold` failures in a row."""

    def __init__(self, socket: Path, probe: Probe, on_dead: Callable[[str], None]) -> None:
        self._socket = socket
        self._probe = probe
        self._on_dead = on_dead
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"liveness {socket}")

    def close(self) -> None:
        """Stop asking."""
        self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._probe.initial_delay_seconds)
        failures, next_at = 0, loop.time()
        while True:
            next_at = max(next_at + self._probe.period_seconds, loop.time())
            await asyncio.sleep(next_at - loop.time())
            problem = await ask_alive(self._socket, self._probe.timeout_seconds)
            failures = failures + 1 if problem else 0
            if failures >= self._probe.failure_threshold:
                self._on_dead(f"Liveness probe failed: {problem}")
                return


async def ask_alive(socket: Path, timeout: float) -> str:
    """One probe: "" if the server is alive, else what is wrong."""
    from runtimes.contract.client import RuntimeClient
    from runtimes.contract.mux import CallError

    client = None
    try:
        async with asyncio.timeout(timeout):
            client = await RuntimeClient.connect(socket)
            await client.alive(timeout=timeout)
    except CallError as error:
        return str(error)
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except Exception as error:  # whatever the contract's client makes of a dead server, it is not alive
        return f"{type(error).__name__}: {error}"
    finally:
        if client is not None:
            with contextlib.suppress(Exception):
                client.close()
    return ""
