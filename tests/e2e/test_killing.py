"""kill -9 of everything: children heal, the parent takes all along, a second start takes up where the first was."""

import json
import os
import signal

import pytest

from tests.e2e.stack import COUNTER, Stack, alive, descendants, function, marked, names, until

NAME = names()
STRAY = """
import os, subprocess
def invoke(request):
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    return {"outputs": {"pid": child.pid}}
"""


def make(stack: Stack, manifest: object) -> None:
    done = stack.krt("run", "-f", "-", "--wait", "--timeout", "30s", stdin=json.dumps(manifest))
    assert done.code == 0, done.err


def serves(stack: Stack, name: str) -> bool:
    return stack.krt("invoke", name, "--timeout", "2s").code == 0


def used(stack: Stack) -> str:
    return stack.kubectl("get", "runtime", "python", "-o", "jsonpath={.status.capacity.used.runs}").out or "0"


def test_any_killed_child_heals_with_no_lost_slot_and_no_orphan(fresh: Stack) -> None:
    fresh.start()
    name = next(NAME)
    make(fresh, function(name, COUNTER))
    assert fresh.process is not None
    victims = sorted(fresh.processes())
    assert len(victims) >= 8, victims
    for victim in [*victims, "supervisor"]:
        pid = fresh.state()["supervisor"]["pid"] if victim == "supervisor" else fresh.processes()[victim]
        below = descendants(pid)
        os.kill(pid, signal.SIGKILL)
        until(f"{victim} died", lambda pid=pid: not alive(pid))
        until(f"calls are answered after {victim} was killed", lambda: serves(fresh, name), 10)
        until(
            f"everything of {victim} is ended or has a parent",
            lambda below=below: all(not alive(one) or one in descendants(fresh.process.pid) for one in below),
        )
        until(f"{victim} runs again", lambda victim=victim: victim == "supervisor" or victim in fresh.processes(), 10)
    another = next(NAME)
    make(fresh, function(another, COUNTER))
    for one in (name, another):
        assert fresh.krt("delete", one).code == 0
    until("every slot is free", lambda: used(fresh) == "0")


def test_killing_the_parent_ends_everything_and_a_second_start_brings_the_runs_back(fresh: Stack) -> None:
    fresh.start()
    name = next(NAME)
    make(fresh, function(name, STRAY))
    stray = fresh.krt("invoke", name).json["outputs"]["pid"]
    assert alive(stray)
    assert fresh.process is not None
    below = descendants(fresh.process.pid)
    uid = fresh.krt("get", name, "-o", "json").json["metadata"]["uid"]
    assert stray in below
    fresh.stop(signal.SIGKILL)
    until("everything ended, user code's children too", lambda: not [pid for pid in below if alive(pid)], 10)
    assert marked(fresh.directory) == []
    fresh.start()
    until("the Run serves again", lambda: serves(fresh, name))
    assert fresh.krt("get", name, "-o", "json").json["metadata"]["uid"] == uid


def test_an_orderly_stop_ends_everything_and_the_data_stays(fresh: Stack) -> None:
    fresh.start()
    name = next(NAME)
    make(fresh, function(name, STRAY))
    stray = fresh.krt("invoke", name).json["outputs"]["pid"]
    assert fresh.process is not None
    below = descendants(fresh.process.pid)
    assert fresh.stop() == 0
    until("everything ended", lambda: not [pid for pid in [*below, stray] if alive(pid)], 10)
    fresh.start()
    until("the Run serves again", lambda: serves(fresh, name))


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_both_signals_end_it_with_zero(fresh: Stack, sig: int) -> None:
    fresh.start()
    assert fresh.ready_seconds <= 15
    assert fresh.stop(sig) == 0
