"""System calls by which one function could harm another or the server, which Landlock has no rule for."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.kit import ROOT, Bench, alive, failing
from tests.runtimes.test_python_functions import outputs

ATTACK = """
    import ctypes, os, resource, subprocess, sys
    libc = ctypes.CDLL(None, use_errno=True)
    def call(*arguments):
        if libc.syscall(*arguments) < 0:
            raise OSError(ctypes.get_errno(), "")
    def namespace(flag):
        if libc.unshare(flag) < 0:
            raise OSError(ctypes.get_errno(), "")
    ways = {
        "limits": lambda pid: resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0)),
        "descriptors": lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3)),
        "mark": lambda pid: resource.prlimit(pid, getattr(resource, "RLIMIT_RTTIME", 15), (1, 1)),
        "priority": lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19),
        "priority of all": lambda pid: os.setpriority(os.PRIO_USER, 0, 19),
        "group": lambda pid: os.setpriority(os.PRIO_PGRP, os.getpgid(pid), 19),
        "affinity": lambda pid: os.sched_setaffinity(pid, {0}),
        "scheduler": lambda pid: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
        "keys": lambda pid: call(NUMBERS["add_key"], b"user", b"kr", b"x", 1, -4),
        "disk": lambda pid: call(NUMBERS["ioprio_set"], 1, pid, 3 << 13),
    }
    ways.update({f"namespace {flag:x}": lambda pid, flag=flag: namespace(flag)
                 for flag in (0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x10020000)})
    NUMBERS = {"x86_64": {"add_key": 248, "ioprio_set": 251},
               "aarch64": {"add_key": 217, "ioprio_set": 30}}[os.uname().machine]
    def invoke(request):
        done = []
        for pid in request:
            for name, way in ways.items():
                try:
                    way(pid)
                    done.append(f"{name} of {pid}")
                except OSError:
                    pass
        return {"outputs": {"done": done}}
"""
VICTIM = "import os\ndef invoke(request):\n    return {'outputs': {'pids': [os.getpid(), os.getppid()]}}\n"


async def test_limits_priority_and_scheduling_of_others_are_not_changed_and_no_namespace_is_made(python: Bench) -> None:
    _, victim = await python.register("", files={"main.py": VICTIM})
    pids = (await python.invoke(victim))["outputs"]["pids"]
    found = await outputs(python, ATTACK, [*pids, python.server.pid])
    assert found == {"done": []}
    assert (await python.invoke(victim))["outputs"]["pids"] == pids


async def test_what_a_program_does_to_itself_is_allowed(python: Bench) -> None:
    source = """
        import concurrent.futures, multiprocessing, os, resource, subprocess, threading
        def below():
            return os.cpu_count()
        def invoke(request):
            resource.setrlimit(resource.RLIMIT_STACK, resource.getrlimit(resource.RLIMIT_STACK))
            resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            limits = [resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] for pid in (0, os.getpid())]
            os.nice(1)
            os.sched_setaffinity(0, os.sched_getaffinity(0))
            command = "ulimit -n 50; nice -n 1 true && ulimit -n"
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
            with concurrent.futures.ThreadPoolExecutor(4) as threads:
                names = list(threads.map(len, ["a", "bb"]))
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                cpus = pool.apply(below)
            return {"outputs": {"limits": limits, "shell": done.stdout, "names": names, "cpus": cpus == os.cpu_count()}}
    """
    found = await outputs(python, source)
    assert found == {"limits": [100, 100], "shell": "50\n", "names": [1, 2], "cpus": True}


STRAY = """
    import ctypes, os, resource, time
    def invoke(request):
        if os.fork() == 0:
            os.setsid()
            for limits in ((0, 0), (1, 1), ((1 << 50) + 1, (1 << 50) + 1)):
                try:
                    resource.setrlimit(15, limits)
                except (OSError, ValueError):
                    pass
            ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
            with open(request["pid"], "w") as file:
                file.write(str(os.getpid()))
            time.sleep(300)
        while not os.path.exists(request["pid"]) or not os.path.getsize(request["pid"]):
            time.sleep(0.01)
        if request["wait"]:
            time.sleep(300)
        return {}
"""


@pytest.mark.parametrize("wait", [True, False])
async def test_no_process_loses_the_mark_by_which_it_is_found(python: Bench, tmp_path: Path, wait: bool) -> None:
    note = tmp_path / "pid"
    epoch, registration = await python.register("", files={"main.py": textwrap.dedent(STRAY)})
    request = {"pid": str(note), "wait": wait}
    if wait:
        async with failing("InvocationTimeout"):
            await python.invoke(registration, request, timeout=1)
    else:
        await python.invoke(registration, request)
        assert alive(int(note.read_text()))
        await python.unregister(epoch)
    assert not alive(int(note.read_text()))


async def test_bash_is_under_the_same_rules(bash: Bench) -> None:
    source = "invoke() { renice -n 5 -p $PPID >/dev/null 2>&1; a=$?; prlimit --pid $PPID --cpu=1 2>/dev/null; b=$?\n"
    source += 'unshare -Ur true 2>/dev/null; echo "{\\"outputs\\": {\\"s\\": [$a, $b, $?]}}"; }\n'
    _, registration = await bash.register("", files={"main.sh": source})
    assert 0 not in (await bash.invoke(registration))["outputs"]["s"]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
def test_the_filter_of_a_machine_is_whole(machine: str) -> None:
    """Every jump lands in the program, and every way through it ends in an answer."""
    names: dict[str, Any] = {"__name__": "syscalls"}
    exec(compile((ROOT / "runtimes/python/syscalls.py").read_text(), "syscalls.py", "exec"), names)
    program = names["filter_of"](machine)
    assert bool(program) == (machine != "riscv64")
    for at, (code, yes, no, _) in enumerate(program):
        assert max(yes, no) < 256
        if code != 0x06:
            assert at + 1 + max(yes, no) < len(program)
    assert not program or program[-1][0] == 0x06
