"""What the control plane writes down folds again to what the API showed, over restarts, conflicts and lost answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controlplane.kube.journalfile import JournalFile, segments
from controlplane.kube.resources import RUNS
from statemachine.events import Role
from statemachine.journal import Entry, decode
from statemachine.replay import replay
from statemachine.run import Phase, RunUID
from tests.control.support import World, settle
from tests.kit.builders import assigned, function_run, runtime_pod
from tests.kit.fakekube import lost


def entries(folder: Path) -> Iterator[Entry]:
    paths = segments(folder)
    for path in paths:
        yield from decode(path.read_bytes(), last=path == paths[-1])


class Journaled(World):
    """A world whose control planes write to disk, as one writer."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.journal: Any = None

    def plane(self) -> Any:
        self.journal = JournalFile(
            self.folder, writer="controlplane", role=Role.CONTROL_PLANE, clock=self.clock, segment_max_bytes=2_000
        )
        return super().plane()


async def test_a_life_with_restarts_and_faults_folds_again(tmp_path: Path):
    world = Journaled(tmp_path / "journal")
    world.runtime(runs=1)
    phases = []

    def note() -> None:
        phases.append(world.api.show("f").status.phase)

    async with world.running():
        world.api.lose_answer()
        world.api.seed(RUNS, function_run("f", metadata={"finalizers": ["kruntimes.io/cleanup"]}))
        world.api.seed(RUNS, function_run("waits"))
        await settle()
        note()
    async with world.running():
        await settle()
        world.api.set_status("f", assigned("Registering"))
        await settle()
        note()
        world.api.set_status("f", assigned("Ready") | {"readyTime": "2026-01-01T00:00:02.000000Z"})
        await settle()
        note()
        world.api.fail_next("patch", lost(), plural="runs")
        world.api.remove_pod("runtime-python-1")
        await world.alarms.live_through(65)
        note()
    async with world.running():
        world.api.set_pod(runtime_pod("runtime-python-2", uid="pod-2"))
        await settle()
        note()
        world.api.store.delete(RUNS, "default", "f", None, None)
        await settle()

    assert len(segments(tmp_path / "journal")) > 1
    fold = replay(entries(tmp_path / "journal"))
    assert (fold.divergence, fold.torn, fold.lost, fold.broken) == (None, None, 0, ())
    assert fold.runs[RunUID("uid-f")].phase is Phase.GONE
    assert fold.runs[RunUID("uid-waits")].phase is Phase.SCHEDULED
    assert phases == ["Scheduled", "Registering", "Ready", "Pending", "Scheduled"]
    seen = [moment.run.phase for moment in fold.moments if moment.run.uid == "uid-f"]
    assert [phase for phase, before in zip(seen, [None, *seen], strict=False) if phase is not before] == [
        Phase.PENDING,
        Phase.SCHEDULED,
        Phase.REGISTERING,
        Phase.READY,
        Phase.PENDING,
        Phase.SCHEDULED,
        Phase.PENDING,
        Phase.GONE,
    ]
