"""The small parts: slots, the gate, the lease, alarms, readiness, configuration."""

import asyncio
import random
from pathlib import Path

import pytest

from controlplane.kube.errors import unavailable
from controlplane.kube.resources import PODS
from dataplane.runtimed.alarms import Alarm
from dataplane.runtimed.config import ConfigError, from_environ
from dataplane.runtimed.gate import Gate
from dataplane.runtimed.lease import Lease
from dataplane.runtimed.local import Local, Stage
from dataplane.runtimed.readiness import Readiness
from dataplane.runtimed.slots import Room, room
from dataplane.runtimed.workdir import WorkDir, remove_tree
from statemachine.run import Epoch, Mode, PodUID, RunUID
from tests.kit.builders import runtime_pod
from tests.kit.clock import ManualClock
from tests.kit.fakekube import FakeKube
from tests.runtimed.fakes import NAMESPACE, POD, POD_UID, ManualAlarms


def holding(stage: Stage, *requests: tuple[str, int], cleared: bool = False) -> Local:
    epoch = Epoch(RunUID("u"), 1, PodUID("p"))
    return Local(epoch, Mode.FUNCTION, stage, requests=requests or (("runs", 1),), cleared=cleared)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], Room.FREE),
        ([holding(Stage.OPEN)], Room.FREE),
        ([holding(Stage.OPEN), holding(Stage.CLAIMED)], Room.FULL),
        ([holding(Stage.OPEN), holding(Stage.CLOSING)], Room.LATER),
        ([holding(Stage.OPEN), holding(Stage.CLOSING, cleared=True)], Room.FREE),
        ([holding(Stage.OPEN, ("runs", 1), ("gpu", 1))], Room.FREE),
    ],
)
def test_what_drains_holds_its_slot_until_it_is_gone(others: list[Local], expected: Room) -> None:
    assert room((("runs", 1),), {"runs": 2, "gpu": 1}, others) is expected


def test_a_resource_that_the_runtime_does_not_declare_never_fits() -> None:
    assert room((("fpga", 1),), {"runs": 2}, []) is Room.FULL


async def test_a_shut_gate_turns_away_at_once_and_waits_for_who_is_inside() -> None:
    gate = Gate()
    assert gate.enter()
    assert gate.enter()
    gate.leave()
    gate.shut()
    assert not gate.enter()
    assert not await gate.emptied(timeout=0.01)
    assert gate.in_flight == 1
    asyncio.get_running_loop().call_soon(gate.leave)
    assert await gate.emptied(timeout=5)
    assert gate.in_flight == 0


def lease(kube: FakeKube, clock: ManualClock, lost: list[str] | None = None) -> Lease:
    return Lease(
        kube,
        clock,
        namespace=NAMESPACE,
        pod_name=POD,
        pod_uid=POD_UID,
        on_lost=lambda: (lost if lost is not None else []).append("lost"),
        on_change=lambda: None,
        rng=random.Random(1),
    )


async def test_a_lease_lasts_45_seconds_from_the_start_of_its_last_good_read() -> None:
    clock = ManualClock()
    kube = FakeKube(clock)
    kube.seed(PODS, runtime_pod(POD, uid=POD_UID))
    held = lease(kube, clock)
    assert not held.fresh
    assert await held.read()
    clock.advance(45)
    assert held.fresh
    clock.advance(0.1)
    assert not held.fresh
    kube.fail_next("get", unavailable("down", sent=False))
    assert not await held.read()
    assert not held.fresh
    assert await held.read()
    assert held.fresh


@pytest.mark.parametrize("how", ["deleting", "gone", "replaced"])
async def test_a_pod_that_is_deleting_gone_or_another_ends_the_lease_for_good(how: str) -> None:
    clock, lost = ManualClock(), list[str]()
    kube = FakeKube(clock)
    kube.seed(PODS, runtime_pod(POD, uid=POD_UID if how != "replaced" else "pod-2"))
    if how == "deleting":
        await kube.delete(PODS, NAMESPACE, POD)
    elif how == "gone":
        await kube.delete(PODS, NAMESPACE, POD, grace_seconds=0)
    held = lease(kube, clock, lost)
    await held.read()
    await held.read()
    assert (held.fresh, held.lost, lost) == (False, True, ["lost"])


def test_an_alarm_that_rings_early_waits_for_its_moment() -> None:
    clock = ManualClock()
    alarms, rung = ManualAlarms(clock), list[int]()
    alarm = Alarm(clock, alarms.call_later, lambda: rung.append(clock.now_us()))
    alarm.set(clock.now_us() + 10_000_000)
    clock.jump(-5)
    alarms.advance(10)
    assert not rung
    assert alarm.armed
    alarms.advance(5)
    assert len(rung) == 1
    assert not alarm.armed


def test_the_readiness_file_is_there_only_while_everything_holds(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    path.touch()
    readiness = Readiness(tmp_path)
    assert not path.exists()
    readiness.server(True)
    readiness.serving()
    assert path.exists()
    readiness.server(False)
    assert not path.exists()
    readiness.server(True)
    assert path.exists()
    readiness.draining()
    readiness.server(True)
    assert not path.exists()


async def test_a_tree_goes_whatever_modes_user_code_left(tmp_path: Path) -> None:
    root = tmp_path / "runs" / "u" / "1"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "deep" / "file").touch()
    (root / "src" / "link").symlink_to(tmp_path)
    (root / "src" / "deep").chmod(0)
    await remove_tree(root)
    await remove_tree(root)
    left = [path.name for path in _below(tmp_path)]
    assert left == ["runs", "u"]


def _below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


async def test_leftovers_go_at_start_and_what_lives_stays(tmp_path: Path) -> None:
    work = WorkDir(tmp_path)
    for uid, attempt in (("live", 1), ("live", 2), ("dead", 1)):
        work.source(uid, attempt).mkdir(parents=True)
    for uid in ("live", "dead"):
        work.log(uid).parent.mkdir(exist_ok=True)
        work.log(uid).touch()
    await work.sweep(epochs={("live", 2)}, runs={"live"})
    assert not work.source("live", 1).exists()
    assert work.source("live", 2).is_dir()
    assert not (tmp_path / "runs" / "dead").exists()
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["live.ndjson"]


GOOD = {
    "POD_NAME": "p",
    "POD_UID": "u",
    "POD_NAMESPACE": "n",
    "POD_IP": "127.0.0.1",
    "KRUNTIMES_RUNTIME": "python",
    "KRUNTIMES_SIGNER_URL": "https://signer",
}


def test_the_environment_is_read_once_and_checked() -> None:
    config = from_environ(GOOD | {"KRUNTIMES_GATEWAY_URL": "https://gateway/"})
    assert (config.port, config.gateway_url, str(config.work_dir)) == (8443, "https://gateway", "/work")


@pytest.mark.parametrize(
    ("name", "value"),
    [("POD_UID", ""), ("KRUNTIMES_PORT", "http"), ("KRUNTIMES_SIGNER_URL", "http://x"), ("KRUNTIMES_WORK_DIR", "work")],
)
def test_a_wrong_environment_is_refused_by_the_variables_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        from_environ(GOOD | {name: value})
