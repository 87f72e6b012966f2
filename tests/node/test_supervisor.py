"""The supervisor and its parent, killed at every point: what dies heals, what is over leaves nothing behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controlplane.embedded import datadir, processes
from controlplane.embedded.control import SystemState
from controlplane.embedded.topology import ProcessSpec

DEADLINE_SECONDS = 20.0
TARGETS = "tests.node.targets"


def until(what: Callable[[], Any], *, seconds: float = DEADLINE_SECONDS) -> Any:
    """Wait for a condition that another process brings about."""
    end = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.01)
    return value


def alive(pid: int) -> bool:
    return processes.start_time(pid) is not None


class System:
    """A parent in a process of its own, on a directory of its own."""

    def __init__(self, path: Path, specs: list[ProcessSpec]) -> None:
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.node.system", str(path), msgspec.json.encode(specs).decode()],
            stdout=subprocess.PIPE,
            text=True,
        )

    def await_line(self, start: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return line
        raise AssertionError(f"ended without a line that starts with {start}")

    @property
    def state(self) -> SystemState | None:
        return datadir.read_state(self.path)

    def pid_of(self, name: str, *, other_than: int = 0) -> int:
        """The pid of a running process, once it has one that differs from `other_than`."""

        def find() -> int:
            state = self.state
            everything = (state.supervisor, *state.processes) if state else ()
            return next((p.pid for p in everything if p.name == name and p.pid != other_than and alive(p.pid)), 0)

        return int(until(find))

    def everything(self) -> list[int]:
        state = self.state
        assert state is not None
        return [state.parent.pid, state.supervisor.pid, *(p.pid for p in state.processes if p.pid)]

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        until(lambda: not datadir.is_locked(self.path))
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., System]]:
    systems: list[System] = []

    def begin(*specs: ProcessSpec, ready: bool = True) -> System:
        system = System(tmp_path / "data", list(specs))
        systems.append(system)
        if ready:
            system.await_line("Ready")
        return system

    yield begin
    for system in systems:
        system.end()


def spec(name: str, target: str, **env: str) -> ProcessSpec:
    return ProcessSpec(name=name, target=f"{TARGETS}.{target}", env=env, after_prepared=False)


BOOTSTRAP = spec("bootstrap", "bootstrap")


def node(tmp_path: Path, *containers: str, **env: str) -> ProcessSpec:
    spawn = "\n".join(f"c{i} {TARGETS}.{target}" for i, target in enumerate(containers))
    return spec(
        "node", "spawner", SPAWN=spawn, REPORTS=str(tmp_path / "reports"), LOGS=str(tmp_path),
        PIDS=str(tmp_path / "strays"), **env,
    )  # fmt: skip


def strays(tmp_path: Path, count: int = 1) -> list[int]:
    def read() -> list[int]:
        with contextlib.suppress(OSError):
            pids = [int(pid) for pid in (tmp_path / "strays").read_text().split()]
            return pids if len(pids) >= count else []
        return []

    return list(until(read))


def test_sigterm_stops_everything_in_order_and_exits_0(start: Callable[..., System]) -> None:
    system = start(spec("gateway", "idle"), spec("apiserver", "idle"), BOOTSTRAP)
    pids = system.everything()
    system.process.terminate()
    assert system.process.wait(DEADLINE_SECONDS) == 0
    assert not any(alive(pid) for pid in pids)
    assert (system.path / "logs" / "gateway.log").read_text().endswith("stopped\n")


def test_sigint_drains_and_a_second_one_ends_at_once(start: Callable[..., System]) -> None:
    system = start(spec("gateway", "idle", SLOW_STOP="3600"), BOOTSTRAP)
    pids = system.everything()
    system.process.send_signal(signal.SIGINT)
    system.await_line("Progress(text='waiting for gateway")
    assert alive(system.pid_of("gateway"))
    system.process.send_signal(signal.SIGINT)
    system.process.wait(DEADLINE_SECONDS)
    assert not any(alive(pid) for pid in pids)


def test_a_killed_process_is_back_at_once(start: Callable[..., System]) -> None:
    system = start(spec("gateway", "idle"), spec("apiserver", "idle"), BOOTSTRAP)
    for name in ("gateway", "apiserver", "gateway"):
        pid = system.pid_of(name)
        os.kill(pid, signal.SIGKILL)
        assert system.pid_of(name, other_than=pid)


def test_a_killed_supervisor_takes_its_strays_along_and_is_back(start: Callable[..., System], tmp_path: Path) -> None:
    system = start(node(tmp_path, "brood"), spec("gateway", "idle"), BOOTSTRAP)
    (stray,) = strays(tmp_path)
    old = system.everything()[1:]
    os.kill(system.pid_of("supervisor"), signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in [*old, stray]))
    assert system.pid_of("gateway", other_than=old[1])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_end_of_the_parent_is_the_end_of_all(
    start: Callable[..., System], tmp_path: Path, number: signal.Signals
) -> None:
    system = start(node(tmp_path, "brood", "brood", "idle"), spec("gateway", "idle"), BOOTSTRAP)
    pids = strays(tmp_path, 2) + system.everything()
    system.process.send_signal(number)
    system.process.wait(DEADLINE_SECONDS)
    until(lambda: not any(alive(pid) for pid in pids))
    until(lambda: not datadir.is_locked(system.path))


def test_a_parent_killed_before_it_was_ready_leaves_nothing(start: Callable[..., System]) -> None:
    system = start(spec("gateway", "idle"), ready=False)
    pid = system.pid_of("gateway")
    system.process.kill()
    until(lambda: not alive(pid))
    until(lambda: not datadir.is_locked(system.path))


def test_the_end_of_a_container_is_told_after_its_strays_are_gone(start: Callable[..., System], tmp_path: Path) -> None:
    system = start(node(tmp_path, "brood"), BOOTSTRAP)
    (stray,) = strays(tmp_path)
    container = system.pid_of("c0")
    os.kill(container, signal.SIGKILL)
    until(lambda: "Exited" in (tmp_path / "reports").read_text())
    assert not alive(stray)
    assert "code=137" in (tmp_path / "reports").read_text()


def test_a_daemon_of_a_living_container_lives_on(start: Callable[..., System], tmp_path: Path) -> None:
    system = start(node(tmp_path, "brood", "idle"), BOOTSTRAP)
    (stray,) = strays(tmp_path)
    os.kill(system.pid_of("c1"), signal.SIGKILL)
    until(lambda: "Exited(id='c1'" in (tmp_path / "reports").read_text())
    assert alive(stray)
    assert alive(system.pid_of("c0"))


def test_containers_outlive_the_node_which_adopts_them(start: Callable[..., System], tmp_path: Path) -> None:
    system = start(node(tmp_path, "idle", "idle"), BOOTSTRAP)
    containers = [system.pid_of("c0"), system.pid_of("c1")]
    old = system.pid_of("node")
    os.kill(containers[1], signal.SIGKILL)
    until(lambda: "Exited(id='c1'" in (tmp_path / "reports").read_text())
    os.kill(old, signal.SIGKILL)
    new = system.pid_of("node", other_than=old)
    until(lambda: f"{new} Enumerated" in (tmp_path / "reports").read_text())
    told = [line for line in (tmp_path / "reports").read_text().splitlines() if line.startswith(f"{new} ")]
    assert f"Started(id='c0', pid={containers[0]}" in told[0]
    assert "Exited(id='c1', code=137" in told[1]
    assert alive(containers[0])


def test_a_process_that_flees_by_forking_is_caught(start: Callable[..., System], tmp_path: Path) -> None:
    marker = f"comet-{os.getpid()}"[:11]

    def comets() -> list[int]:
        found = []
        for comm in Path("/proc").glob("[0-9]*/comm"):
            with contextlib.suppress(OSError):
                if comm.read_text().strip() == f"krt-{marker}":
                    found.append(int(comm.parent.name))
        return found

    system = start(spec("gateway", "idle"), spec(marker, "comet"), BOOTSTRAP)
    until(comets)
    system.process.kill()
    system.process.wait()
    until(lambda: not datadir.is_locked(system.path))
    assert not comets()


def test_a_process_that_never_starts_fails_the_start_with_its_last_line(start: Callable[..., System]) -> None:
    system = start(spec("apiserver", "crash"), spec("gateway", "idle"), ready=False)
    line = system.await_line("Failed")
    assert "ProcessFailed" in line
    assert "no luck today" in line
    assert system.process.wait(DEADLINE_SECONDS) == 1


def test_a_target_that_cannot_be_imported_fails_the_start(start: Callable[..., System]) -> None:
    system = start(spec("gateway", "missing"), ready=False)
    assert "StartFailed" in system.await_line("Failed")
    assert system.process.wait(DEADLINE_SECONDS) == 1


def test_the_folder_for_sockets_is_gone_at_the_end(start: Callable[..., System]) -> None:
    system = start(spec("gateway", "idle"), BOOTSTRAP)
    config = msgspec.json.decode((system.path / "config.json").read_bytes(), type=datadir.Config)
    assert Path(config.run_dir).is_dir()
    system.process.terminate()
    system.process.wait(DEADLINE_SECONDS)
    assert not Path(config.run_dir).exists()
