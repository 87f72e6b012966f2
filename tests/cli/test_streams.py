"""Pipes that close, disks that are full, streams that are not there, interrupts, and text that is no UTF-8."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apiserver.harness import run as a_run
from tests.cli.stage import ROOT, Kubernetes, process

HELP = ("get", "--help")
FULL = "/dev/full"


@pytest.fixture
def config(kubernetes: Kubernetes, tmp_path: Path) -> dict[str, str]:
    for number in range(3):
        kubernetes.put(a_run(f"r{number}"))
    return {"KUBECONFIG": str(kubernetes.kubeconfig(tmp_path / "config"))}


def test_a_reader_that_has_gone_ends_it_quietly(config: dict[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for args in (HELP, ("list",)):
        done = process(*args, environ=config, stdout=writing, stderr=subprocess.PIPE)
        assert (done.returncode, done.stderr) == (141, b"")
    os.close(writing)


def test_a_full_disk_is_told(config: dict[str, str]) -> None:
    with Path(FULL).open("wb") as full:
        for args in (HELP, ("list", "-o", "yaml")):
            done = process(*args, environ=config, stdout=full, stderr=subprocess.PIPE)
            assert done.returncode == 1
            assert done.stderr == b"CannotWrite: cannot write the result: No space left on device\n"


def test_with_no_stdout_the_exit_code_still_tells(config: dict[str, str]) -> None:
    shell = f'exec "{sys.executable}" -m controlplane.cli "$@"'
    runs = [(">&-", ("list",), 0), ("2>&-", ("invoke", "nobody"), 3), ("<&-", ("run", "-f", "-"), 2)]
    for closed, args, code in [*runs, (">&- 2>&- <&-", ("version", "--client"), 0)]:
        command = ["/bin/sh", "-c", f"{shell} {closed}", "krt", *args]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **config}, capture_output=True, timeout=30, check=False
        )
        assert (done.returncode, b"Traceback" in done.stderr) == (code, False), (closed, args)


def test_an_interrupt_ends_a_watch_quietly(config: dict[str, str]) -> None:
    command = [sys.executable, "-m", "controlplane.cli", "list", "-w"]
    watching = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **config}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert watching.stdout is not None
    assert watching.stdout.readline().startswith(b"NAME")
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=10)
    assert (watching.returncode, errors) == (130, b"")


def test_arguments_that_are_no_utf8_are_told_in_any_locale() -> None:
    for locale, *options, begin in (("C", b"InvalidName: "), ("C.UTF-8", "-o", "json", b'{"kind":"Status"')):
        done = process("invoke", b"a\xff", *options, environ={"LC_ALL": locale})
        assert done.returncode == 2
        assert done.stderr.startswith(begin)


def test_results_are_utf8_whatever_the_locale() -> None:
    done = process("diagram", environ={"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 0
    assert "→".encode() in done.stdout


def test_help_is_plain_in_a_pipe_and_drawn_on_a_terminal() -> None:
    assert b"\x1b" not in process(*HELP).stdout
    for environ, drawn in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)):
        master, slave = os.openpty()
        done = process(*HELP, environ=environ, stdout=slave, stderr=subprocess.PIPE)
        os.close(slave)
        text = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:
                break
            text += part
        os.close(master)
        assert done.returncode == 0
        assert (b"\x1b" in text) is drawn
        assert b"diagnose-service" in text


def test_phases_have_colours_on_a_terminal_only(kubernetes: Kubernetes, config: dict[str, str]) -> None:
    kubernetes.set_status("r0", {"phase": "Failed"})
    assert b"\x1b" not in process("list", environ=config | {"TERM": "xterm"}).stdout
    master, slave = os.openpty()
    process("list", environ=config | {"TERM": "xterm"}, stdout=slave, stderr=subprocess.PIPE)
    os.close(slave)
    assert b"\x1b[31mFailed" in os.read(master, 65536)
    os.close(master)
