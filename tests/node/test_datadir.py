"""The data directory: who may have it, what it remembers, and what a reset leaves alone."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from controlplane.embedded import datadir, logs, processes
from controlplane.embedded.datadir import DataDir, StartRefused, open_directory


def opened(path: Path, *, api_port: int | None = 0, gateway_port: int | None = 0, reset: bool = False) -> DataDir:
    return open_directory(path, api_port=api_port, gateway_port=gateway_port, reset=reset)


def test_ports_and_the_pod_network_are_remembered(tmp_path: Path) -> None:
    first = opened(tmp_path / "d")
    first.close()
    again = opened(tmp_path / "d", api_port=None, gateway_port=None)
    assert again.config == first.config
    assert len({again.config.api_port, again.config.gateway_port, again.config.signer_port}) == 3
    again.close()


def test_a_picked_port_that_is_taken_is_picked_anew_and_a_wanted_one_is_refused(tmp_path: Path) -> None:
    first = opened(tmp_path / "d")
    first.close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first.config.api_port))
        taken.listen()
        with pytest.raises(StartRefused, match="PortInUse"):
            opened(tmp_path / "d", api_port=None)
        again = opened(tmp_path / "d")
        assert again.config.api_port != first.config.api_port
        assert again.config.gateway_port == first.config.gateway_port
        again.close()


def test_a_directory_is_private_and_locked_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "d"
    path.mkdir(mode=0o755)
    directory = opened(path)
    assert path.stat().st_mode & 0o777 == 0o700
    assert datadir.is_locked(path)
    assert datadir.holder(path) == os.getpid()
    with pytest.raises(StartRefused, match=f"AlreadyRunning.*pid {os.getpid()}"):
        opened(path)
    directory.close()
    assert not datadir.is_locked(path)
    assert datadir.holder(path) is None


def test_a_start_waits_for_a_dead_parent_whose_processes_still_end(tmp_path: Path) -> None:
    opened(tmp_path / "d").close()
    program = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR); fcntl.flock(fd, fcntl.LOCK_EX);"
        "os.ftruncate(fd, 0); os.pwrite(fd, b'4194304', 0); print('held', flush=True); sys.stdin.read(1)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "d" / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdin is not None
    holder.stdout.readline()
    end = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -9 {holder.pid}"])
    opened(tmp_path / "d").close()
    holder.wait()
    end.wait()
    holder.stdin.close()
    holder.stdout.close()


def test_a_foreign_directory_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    for reset in (False, True):
        with pytest.raises(StartRefused, match="DataDirectoryForeign"):
            opened(tmp_path, reset=reset)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_or_newer_directory_is_refused_and_kept(tmp_path: Path) -> None:
    for content in (b'{"format": 99}', b"not json"):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(StartRefused, match="DataDirectoryInvalid"):
            opened(tmp_path)
        assert (tmp_path / "config.json").read_bytes() == content
        assert not datadir.is_locked(tmp_path)


def test_a_reset_removes_what_is_ours_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "d"
    opened(path).close()
    (path / "state.db-wal").touch()
    (path / "pods" / "u1").mkdir()
    (path / "notes.txt").touch()
    (path / "journal").rmdir()
    (path / "journal").symlink_to(tmp_path)
    opened(path, reset=True).close()
    assert not (path / "state.db-wal").exists()
    assert not (path / "pods" / "u1").exists()
    assert (path / "notes.txt").exists()
    assert tmp_path.exists() and not (path / "journal").is_symlink()


def test_the_folder_for_sockets_is_short_private_and_reused(tmp_path: Path) -> None:
    directory = opened(tmp_path / "d")
    directory.make_run_dir()
    made = Path(directory.config.run_dir)
    assert len(str(made)) < 60
    assert made.stat().st_mode & 0o777 == 0o700
    directory.make_run_dir()
    assert Path(directory.config.run_dir) == made
    made.chmod(0o755)
    directory.make_run_dir()
    assert Path(directory.config.run_dir) != made
    directory.remove_run_dir()
    made.rmdir()
    directory.close()


def test_the_folder_for_sockets_is_below_the_directory_unless_paths_would_be_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="d", dir="/tmp") as short,
        tempfile.TemporaryDirectory(dir=short) as runtime,
    ):
        long = Path(short, "x" * 40)
        for path, environment, parent in (
            (Path(short, "d"), "", Path(short, "d")),
            (long, runtime, Path(runtime)),
            (long, "/no/such/folder", Path("/tmp")),
        ):
            monkeypatch.setenv("XDG_RUNTIME_DIR", environment)
            directory = opened(path)
            directory.make_run_dir()
            assert Path(directory.config.run_dir).parent == parent
            directory.remove_run_dir()
            directory.close()


def test_forks_of_a_zygote_are_known_by_its_command_line_and_others_are_not_touched(tmp_path: Path) -> None:
    pods = tmp_path / "pods"
    work = pods / "u1" / "volumes" / "work"
    work.mkdir(parents=True)
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    commands = (
        [*sleeper, "/proc/self/fd/9", "3", str(work)],
        [*sleeper, str(work / "log")],
        [*sleeper, "/proc/self/fd/9"],
    )
    started = [subprocess.Popen(command, env={}, cwd="/", start_new_session=True) for command in commands]
    try:
        for process in started:  # Until exec has given it its own command line.
            while b"sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                time.sleep(0.001)
        assert processes.end_leftovers(pods) == 1
        assert started[0].wait(5) == -signal.SIGKILL
        assert [process.poll() for process in started[1:]] == [None, None]
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_log_that_outgrew_its_limit_is_cut_under_its_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_MAX_BYTES", 100)
    path = tmp_path / "x.log"
    with path.open("a", buffering=1) as writer:
        writer.write("a" * 101 + "\n")
        logs.bound(path)
        writer.write("b\n")
    assert path.read_text() == "b\n"
    assert (tmp_path / "x.log.1").read_text() == "a" * 101 + "\n"
    assert logs.last_line(path) == "b"
    assert logs.last_line(tmp_path / "missing") == ""
    path.write_text('{"message": "cannot start", "error": "Traceback\\nOSError: no disk"}\n\n')
    assert logs.last_line(path) == "cannot start: OSError: no disk"


def test_a_kubeconfig_names_its_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from controlplane.cli.up import _found

    directory = datadir.open_directory(tmp_path / "other", api_port=0, gateway_port=0, reset=False)
    directory.close()
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'other' / 'kubeconfig'}:/elsewhere")
    monkeypatch.delenv("KRUNTIMES_DATA_DIR", raising=False)
    assert _found(None) == tmp_path / "other"
    assert _found(tmp_path / "named") == tmp_path / "named"
    monkeypatch.setenv("KRUNTIMES_DATA_DIR", str(tmp_path / "set"))
    assert _found(None) == tmp_path / "set"
    monkeypatch.delenv("KRUNTIMES_DATA_DIR")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))  # not of a krt up
    assert _found(None) == Path.home() / ".kruntimes"
