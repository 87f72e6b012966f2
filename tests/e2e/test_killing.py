"""kill -9 of everything: children heal, the parent takes all along, a second start takes up where the first was."""

import json
import os
import signal

import pytest

from tests.e2e.embedded import Embedded, alive, descendants, marked
from tests.e2e.stack import COUNTER, function, names, until

NAME = names()
pytestmark = pytest.mark.embedded("what happens to children of the foreground process of `krt up`")
STRAY = """
import os, subprocess
def invoke(request):
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    return {"outputs": {"pid": child.pid}}
"""


def make(stack: Embedded, manifest: object) -> None:
    done = stack.krt("run", "-f", "-", "--wait", "--timeout", "30s", stdin=json.dumps(manifest))
    assert done.code == 0, done.err


def serves(stack: Embedded, name: str) -> bool:
    return stack.krt("invoke", name, "--timeout", "2s").code == 0


def used(stack: Embedded) -> str:
    return stack.kubectl("get", "runtime", "python", "-o", "jsonpath={.status.capacity.used.runs}").out or "0"


@pytest.mark.slow
def test_any_killed_child_heals_with_no_lost_slot_and_no_orphan(one_machine: Embedded) -> None:
    one_machine.start()
    name = next(NAME)
    make(one_machine, function(name, COUNTER))
    assert one_machine.process is not None
    victims = sorted(one_machine.processes())
    assert len(victims) >= 8, victims
    for victim in [*victims, "supervisor"]:
        pid = one_machine.state()["supervisor"]["pid"] if victim == "supervisor" else one_machine.processes()[victim]
        below = descendants(pid)
        os.kill(pid, signal.SIGKILL)
        until(f"{victim} died", lambda pid=pid: not alive(pid))
        until(f"calls are answered after {victim} was killed", lambda: serves(one_machine, name), 10)
        until(
            f"everything of {victim} is ended or has a parent",
            lambda below=below: all(not alive(one) or one in descendants(one_machine.process.pid) for one in below),
        )
        until(
            f"{victim} runs again",
            lambda victim=victim: victim == "supervisor" or victim in one_machine.processes(),
            10,
        )
    another = next(NAME)
    make(one_machine, function(another, COUNTER))
    for one in (name, another):
        assert one_machine.krt("delete", one).code == 0
    until("every slot is free", lambda: used(one_machine) == "0")


def test_killing_the_parent_ends_everything_and_a_second_start_brings_the_runs_back(one_machine: Embedded) -> None:
    one_machine.start()
    name = next(NAME)
    make(one_machine, function(name, STRAY))
    stray = one_machine.krt("invoke", name).json["outputs"]["pid"]
    assert alive(stray)
    assert one_machine.process is not None
    below = descendants(one_machine.process.pid)
    uid = one_machine.krt("get", name, "-o", "json").json["metadata"]["uid"]
    assert stray in below
    one_machine.stop(signal.SIGKILL)
    until("everything ended, user code's children too", lambda: not [pid for pid in below if alive(pid)], 10)
    assert marked(one_machine.directory) == []
    one_machine.start()
    until("the Run serves again", lambda: serves(one_machine, name))
    assert one_machine.krt("get", name, "-o", "json").json["metadata"]["uid"] == uid


@pytest.mark.slow
def test_an_orderly_stop_ends_everything_and_the_data_stays(one_machine: Embedded) -> None:
    one_machine.start()
    name = next(NAME)
    make(one_machine, function(name, STRAY))
    stray = one_machine.krt("invoke", name).json["outputs"]["pid"]
    assert one_machine.process is not None
    below = descendants(one_machine.process.pid)
    assert one_machine.stop() == 0
    until("everything ended", lambda: not [pid for pid in [*below, stray] if alive(pid)], 10)
    one_machine.start()
    until("the Run serves again", lambda: serves(one_machine, name))


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_both_signals_end_it_with_zero(one_machine: Embedded, sig: int) -> None:
    one_machine.start()
    assert one_machine.ready_seconds <= 15
    assert one_machine.stop(sig) == 0
