"""Every status that the lifecycle writes is one that the API takes: two laws, no contradiction."""

import itertools
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from controlplane.embedded.apiserver.schema import CompiledCRD
from controlplane.kube.crd import render
from controlplane.kube.patches import status_fields
from statemachine.commands import PatchStatus
from statemachine.events import Role
from statemachine.run import TERMINAL, Mode, Phase, Run, Status
from statemachine.step import step
from tests.statemachine.samples import DECISIONS, modes_of, run_in

RUNS = CompiledCRD.compile(yaml.safe_load(render()["kruntimes.io_runs.yaml"])).versions["v1alpha1"]
STARTS = [(phase, mode) for phase in Phase if phase is not Phase.GONE for mode in modes_of(phase)]
SPECS: dict[Mode, dict[str, Any]] = {
    Mode.TASK: {"runtime": "python"},
    Mode.FUNCTION: {
        "runtime": "python",
        "source": {"inline": "x", "inlinePath": "main.py"},
        "mode": {"function": {"handler": "main.invoke"}},
    },
}


def api_object(mode: Mode, status: Status) -> dict[str, Any]:
    item = {"metadata": {"name": "sample"}, "spec": dict(SPECS[mode]), "status": status_fields(status)}
    defaulted, unknown = RUNS.prune_and_default(item)
    assert unknown == [], "the lifecycle writes a field that the API does not know"
    return defaulted


def written(run: Run) -> list[Run]:
    """The Runs that one event can leave behind with a status that is to be written."""
    found = []
    for (_, make), role in itertools.product(DECISIONS.items(), Role):
        outcome = step(run, make(), role)
        if any(isinstance(command, PatchStatus) for command in outcome.commands):
            found.append(outcome.run)
    return found


@pytest.mark.parametrize(("phase", "mode"), STARTS)
def test_what_is_written_from_a_phase_is_taken(phase: Phase, mode: Mode) -> None:
    start = run_in(phase, mode)
    before = api_object(mode, start.status)
    assert RUNS.validate(before) == []
    assert phase in TERMINAL or written(start)
    for once in written(start):
        after = api_object(mode, once.status)
        assert RUNS.validate(after, before) == [], once.status
        for twice in written(replace(once, finalizer=True)):
            assert RUNS.validate(api_object(mode, twice.status), after) == [], twice.status
