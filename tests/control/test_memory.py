"""What a control plane keeps of Runs that are gone: nothing, and nothing for the garbage collector."""

import gc
from collections.abc import Sized

from controlplane.cell import Cell
from controlplane.kube.resources import RUNS
from controlplane.plane import ControlPlane
from controlplane.timers import STALE_ENTRIES_MIN
from tests.control.support import World, settle
from tests.kit.builders import function_run

RUNS_LIVED = 3 * STALE_ENTRIES_MIN


def remembered(plane: ControlPlane) -> dict[str, int]:
    """How many entries each of its tables has; the heaps keep some that are outdated, and sweep them out."""
    planner, recovery = plane.scheduler.planner, plane.recovery
    tables: dict[str, Sized] = {
        "cells": plane.loop._cells,
        "timers": plane.timers,
        "vigil": plane.vigil,
        "held": planner._held,
        "assumed": planner._assumed,
        "told": planner._told,
        "waiting": planner._waiting,
        "queues": planner._queues,
        "owned": recovery._owned,
        "fences": recovery._fences,
        "silent": recovery._silent,
        "tasks": plane.tasks,
        **{f"store {number}": informer.store for number, informer in enumerate(plane.informers)},
    }
    return {name: len(table) for name, table in tables.items()}


async def test_runs_that_are_gone_leave_nothing_in_any_table() -> None:
    world = World()
    world.runtime(runs=4)
    async with world.running() as plane:
        await settle()
        before = remembered(plane)
        gc.collect()
        gc.disable()
        try:
            for number in range(RUNS_LIVED):
                name = f"f{number}"
                world.api.seed(RUNS, function_run(name))
                await settle()
                bound = world.api.show(name).status
                assert bound.phase == "Scheduled"
                world.api.set_status(
                    name,
                    {
                        "phase": "Ready",
                        "attempt": 1,
                        "assignedPod": bound.assigned_pod,
                        "assignedPodUID": bound.assigned_pod_uid,
                    },
                )
                await settle()
                world.api.store.delete(RUNS, "default", name, None, None)
                await settle()
            assert remembered(plane) == before
            heaps = [len(heap._deadlines._heap) for heap in (plane.timers, plane.vigil)]
            assert max(heaps) <= STALE_ENTRIES_MIN + 2
            assert not any(isinstance(each, Cell) for each in gc.get_objects())
        finally:
            gc.enable()
