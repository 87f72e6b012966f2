"""A leader that is being replaced leaves the Deployments that are there to its successor, but not for ever."""

import msgspec

from controlplane.kube.errors import unavailable
from controlplane.kube.resources import DEPLOYMENTS, PODS, RUNTIMES
from controlplane.kube.types import Deployment, DeploymentSpec, ObjectMeta, Pod, PodTemplate
from controlplane.runtimecontroller.controller import SUCCESSOR_LOOK_S, SUCCESSOR_WAIT_S
from controlplane.succession import NAME, Succession
from tests.control.support import World
from tests.kit.builders import runtime_object
from tests.kit.fakekube import FakeKube

NAMESPACE = "kruntimes-system"
CONTAINER = {"name": "controlplane", "image": "controlplane:1", "env": [{"name": "A", "value": "1"}]}


def pod(**template: object) -> Pod:
    metadata = {"name": "me", "namespace": NAMESPACE, "labels": {"app": "k", "pod-template-hash": "1"}}
    content = {"metadata": metadata | {"annotations": {"built": "1"}}, "spec": {"containers": [CONTAINER]}} | template
    return msgspec.convert(content, Pod)


def with_deployment(**container: object) -> FakeKube:
    kube = FakeKube()
    kube.seed(PODS, pod())
    template = PodTemplate(
        metadata=ObjectMeta(labels={"app": "k"}, annotations={"built": "1"}),
        spec={"containers": [CONTAINER | container]},
    )
    metadata = ObjectMeta(name=NAME, namespace=NAMESPACE)
    kube.seed(DEPLOYMENTS, Deployment(metadata=metadata, spec=DeploymentSpec(template=template)))
    return kube


async def awaited(kube: FakeKube) -> bool:
    return await Succession(kube, namespace=NAMESPACE, pod="me").awaited()


async def test_a_pod_that_is_what_its_deployment_asks_for_awaits_nobody() -> None:
    assert not await awaited(with_deployment())


async def test_another_image_environment_or_annotation_announces_a_successor() -> None:
    assert await awaited(with_deployment(image="controlplane:2"))
    assert await awaited(with_deployment(env=[{"name": "A", "value": "2"}]))
    kube = with_deployment()
    annotations = {"spec": {"template": {"metadata": {"annotations": {"built": "2"}}}}}
    await kube.merge_patch(DEPLOYMENTS, NAMESPACE, NAME, annotations)
    assert await awaited(kube)


async def test_without_an_answer_it_goes_on_as_before() -> None:
    kube = with_deployment(image="controlplane:2")
    kube.fail_next("get", unavailable("down", sent=False))
    assert not await awaited(kube)


def replicas(world: World) -> int:
    found: int = world.api.store.find(DEPLOYMENTS, "default", "runtime-python")["spec"]["replicas"]
    return found


def scale(world: World, number: int) -> None:
    obj = world.api.store.find(RUNTIMES, "default", "python")
    world.api.store.change(RUNTIMES, "default", "python", {**obj, "spec": {**obj["spec"], "replicas": number}}, "")


async def test_a_deployment_that_is_there_is_left_to_the_successor() -> None:
    world = World()
    async with world.running():
        world.api.seed(RUNTIMES, runtime_object())
        await world.alarms.live_through(3)
        world.successor = True
        scale(world, 3)
        await world.alarms.live_through(SUCCESSOR_WAIT_S / 2)
        assert replicas(world) == 1
        world.successor = False
        await world.alarms.live_through(SUCCESSOR_LOOK_S + 1)
        assert replicas(world) == 3


async def test_a_successor_that_does_not_come_is_not_waited_for_for_ever() -> None:
    world = World()
    async with world.running():
        world.api.seed(RUNTIMES, runtime_object())
        await world.alarms.live_through(3)
        world.successor = True
        scale(world, 3)
        await world.alarms.live_through(SUCCESSOR_WAIT_S + SUCCESSOR_LOOK_S + 1)
        assert replicas(world) == 3


async def test_a_new_runtime_does_not_wait_for_a_successor() -> None:
    world = World()
    world.successor = True
    async with world.running():
        world.api.seed(RUNTIMES, runtime_object())
        await world.alarms.live_through(3)
        assert replicas(world) == 1
