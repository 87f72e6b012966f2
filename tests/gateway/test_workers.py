"""Several gateway processes: signals reach all, a dead one is replaced, the exit code tells of the worst."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane.gateway.config import ConfigError, from_environ, of_worker
from tests.gateway.test_process import ENVIRONMENT
from tests.kit.waiting import eventually

PROGRAM = """
import pathlib, signal, sys, os
from dataplane.gateway import workers
workers.STARTING_S = 0.0
folder = pathlib.Path(sys.argv[1])
def work(number):
    code = [0, int(sys.argv[2])][number]
    signal.signal(signal.SIGTERM, lambda *_: os._exit(code))
    (folder / f"{number}.new").write_text(str(os.getpid()))
    (folder / f"{number}.new").rename(folder / str(number))
    while True:
        signal.pause()
sys.exit(workers.run_workers(2, work))
"""


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    code = str(getattr(request, "param", 0))
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), code], stderr=subprocess.DEVNULL) as process:
        yield process
        process.kill()


def pid_of(folder: Path, number: int) -> int:
    path = folder / str(number)
    return int(path.read_text()) if path.exists() else 0


async def test_a_worker_that_dies_is_replaced_and_a_stop_ends_all(
    tmp_path: Path, program: subprocess.Popen[bytes]
) -> None:
    await eventually(lambda: pid_of(tmp_path, 0) and pid_of(tmp_path, 1))
    first, other = pid_of(tmp_path, 0), pid_of(tmp_path, 1)
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: pid_of(tmp_path, 0) not in (0, first))
    assert pid_of(tmp_path, 1) == other
    program.terminate()
    assert program.wait(10) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(other, 0)


@pytest.mark.parametrize("program", [3], indirect=True)
async def test_a_worker_that_ends_badly_is_told(tmp_path: Path, program: subprocess.Popen[bytes]) -> None:
    await eventually(lambda: pid_of(tmp_path, 0) and pid_of(tmp_path, 1))
    program.terminate()
    assert program.wait(10) == 1


def test_workers_share_the_port_and_have_metrics_of_their_own() -> None:
    environment = ENVIRONMENT | {"KRUNTIMES_GATEWAY_BIND": "127.0.0.1:8443", "KRUNTIMES_METRICS_BIND": "127.0.0.1:9100"}
    config = from_environ(environment | {"KRUNTIMES_GATEWAY_WORKERS": "2"})
    assert (config.workers, config.share_port) == (2, True)
    assert [of_worker(config, number).metrics_port for number in range(2)] == [9100, 9101]
    assert not from_environ(environment).share_port


@pytest.mark.parametrize("workers", ["0", "65", "many", "-1"])
def test_a_number_of_workers_is_checked(workers: str) -> None:
    with pytest.raises(ConfigError, match="KRUNTIMES_GATEWAY_WORKERS"):
        from_environ(ENVIRONMENT | {"KRUNTIMES_GATEWAY_BIND": "127.0.0.1:8443", "KRUNTIMES_GATEWAY_WORKERS": workers})
