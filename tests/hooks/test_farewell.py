"""An uninstallation leaves custom resources that anybody can delete, and waits for what still runs."""

from pathlib import Path

import pytest

from controlplane.hooks.crds import apply_crds, definitions
from controlplane.hooks.farewell import Farewell, NotDone
from controlplane.hooks.main import main
from controlplane.kube.errors import Invalid
from controlplane.kube.meta import Status
from controlplane.kube.resources import (
    CUSTOMRESOURCEDEFINITIONS,
    DEPLOYMENTS,
    PODS,
    ROLEBINDINGS,
    ROLES,
    RUNS,
    SERVICEACCOUNTS,
)
from controlplane.kube.types import Deployment, ObjectMeta
from tests.kit.builders import assigned, function_run, runtime_pod
from tests.kit.clock import ManualClock
from tests.kit.fakekube import FakeKube

ROOT = Path(__file__).parents[2]
SYSTEM = "kruntimes-system"
OURS = {"app.kubernetes.io/managed-by": "kruntimes"}
HELD = {"finalizers": ["example.org/other", "kruntimes.io/cleanup"]}


class World:
    """An installation with one Runtime Pod, which ends when its Deployment wants none."""

    def __init__(self, *, ends: bool = True) -> None:
        self.clock = ManualClock()
        self.kube = FakeKube(self.clock)
        self.ends = ends
        for name, namespace, labels in (
            ("kruntimes-controlplane", SYSTEM, {}),
            ("runtime-python", "default", OURS),
            ("another", "default", {}),
        ):
            meta = ObjectMeta(name=name, namespace=namespace, uid=name, labels=labels)
            self.kube.seed(DEPLOYMENTS, Deployment(metadata=meta))
        self.kube.seed(PODS, runtime_pod(uid="p"))
        for kind in (SERVICEACCOUNTS, ROLES, ROLEBINDINGS):
            for name, labels in (("runtime-python", OURS), ("mine", {})):
                body = {
                    "metadata": {"name": name, "namespace": "default", "uid": f"{kind.plural}-{name}", "labels": labels}
                }
                self.kube.seed(kind.untyped(), body)

    async def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        replicas = (await self.kube.get(DEPLOYMENTS, "default", "runtime-python")).spec.replicas
        if self.ends and replicas == 0:
            await self.kube.delete(PODS, "default", "runtime-python-1", grace_seconds=0)

    def farewell(self) -> Farewell:
        return Farewell(self.kube, namespace=SYSTEM, drain_s=60, sleep=self.sleep, monotonic=self.clock.monotonic)

    async def replicas(self, namespace: str, name: str) -> int | None:
        return (await self.kube.get(DEPLOYMENTS, namespace, name)).spec.replicas

    async def finalizers(self, name: str) -> tuple[str, ...]:
        return (await self.kube.get(RUNS, "default", name)).metadata.finalizers


async def test_nothing_holds_a_run_afterwards_and_everything_of_the_user_is_there() -> None:
    world = World()
    for name, status in (("ready", assigned("Ready")), ("waiting", {"phase": "Pending"})):
        world.kube.seed(RUNS, function_run(name, uid=name, status=status, metadata=HELD))
    await world.farewell().run()
    assert await world.finalizers("ready") == await world.finalizers("waiting") == ("example.org/other",)
    assert await world.replicas(SYSTEM, "kruntimes-controlplane") == 0
    assert await world.replicas("default", "runtime-python") == 0
    assert await world.replicas("default", "another") != 0
    for kind in (SERVICEACCOUNTS, ROLES, ROLEBINDINGS):
        assert [obj["metadata"]["name"] for obj in world.kube.store.of(kind, None)] == ["mine"]


async def test_the_finalizers_stay_while_a_pod_may_still_run_something() -> None:
    world = World(ends=False)
    world.kube.seed(RUNS, function_run("ready", uid="ready", status=assigned("Ready"), metadata=HELD))
    with pytest.raises(NotDone, match=r"1 Pods of Runtimes still run after 60 s \(default/runtime-python-1\)"):
        await world.farewell().run()
    assert "kruntimes.io/cleanup" in await world.finalizers("ready")
    world.ends = True  # once more
    await world.farewell().run()
    assert await world.finalizers("ready") == ("example.org/other",)


async def test_a_run_that_changes_meanwhile_is_looked_at_again() -> None:
    world = World()
    world.kube.seed(RUNS, function_run("ready", uid="ready", status=assigned("Ready"), metadata=HELD))
    world.kube.fail_next("patch", Invalid(Status(code=422, reason="Invalid")), plural="runs")
    await world.farewell().run()
    assert await world.finalizers("ready") == ("example.org/other",)


async def test_definitions_are_applied_as_they_are_in_the_chart() -> None:
    kube, folder = FakeKube(), ROOT / "deploy" / "chart" / "crds"
    await apply_crds(kube, folder)
    stored = {obj["metadata"]["name"]: obj["spec"] for obj in kube.store.of(CUSTOMRESOURCEDEFINITIONS, None)}
    assert stored == {each["metadata"]["name"]: each["spec"] for each in definitions(folder)}
    assert len(stored) == 2


@pytest.mark.parametrize("arguments", [[], ["farewell"], ["farewell", "soon"], ["other"]])
def test_a_wrong_command_is_refused(arguments: list[str]) -> None:
    assert main(arguments, {}) == 2
