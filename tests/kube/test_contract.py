"""What every `Kube` does: the same tests over objects in memory and over the real client against the embedded server.

Where the two differ, a test of a component that passes in memory proves nothing. With KRUNTIMES_TEST_KUBECONFIG set,
the client is tried against that cluster too, which must have the CRDs.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from controlplane.embedded.apiserver.config import Config, packaged_crd_dir
from controlplane.embedded.apiserver.main import Running
from controlplane.kube.api import Kube, WatchEvent, WatchType
from controlplane.kube.client import KubeClient
from controlplane.kube.clock import SystemClock
from controlplane.kube.errors import AlreadyExists, Conflict, Gone, Invalid, NotFound
from controlplane.kube.events import EventRecorder
from controlplane.kube.informer import Informer
from controlplane.kube.patches import put_finalizer_patch, status_patch, take_finalizer_patch
from controlplane.kube.resources import (
    CONFIGMAPS,
    EVENTS,
    LEASES,
    NAMESPACES,
    PODS,
    RUNS,
    SERVICEACCOUNTS,
    SUBJECTACCESSREVIEWS,
    TOKENREVIEWS,
    Kind,
)
from controlplane.kube.translate import FINALIZER, run_from_object
from controlplane.kube.types import (
    ConfigMap,
    Lease,
    LeaseSpec,
    ObjectMeta,
    PlainObject,
    Pod,
    ResourceAttributes,
    RunObject,
    SubjectAccessReview,
    SubjectAccessReviewSpec,
    TokenReview,
    TokenReviewSpec,
)
from statemachine.commands import Guard, PatchStatus, PutFinalizer, TakeFinalizer
from statemachine.run import Phase, PodUID, Status
from tests.kit.builders import function_run, runtime_pod
from tests.kit.fakekube import FakeKube
from tests.kit.waiting import eventually
from tests.kube.apiserver import kubeconfig

NS = "default"


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data directory for all servers of this file: making keys and schemas once is enough."""
    return tmp_path_factory.mktemp("embedded")


class World:
    """A `Kube` and what only its keeper can do."""

    def __init__(self, kube: Kube, forget_history: Callable[[], None]) -> None:
        self.kube = kube
        self.forget_history = forget_history


CLUSTER = os.environ.get("KRUNTIMES_TEST_KUBECONFIG")


@pytest.fixture(params=["memory", "embedded", *(["cluster"] if CLUSTER else [])])
async def world(request: pytest.FixtureRequest, installation: Path, tmp_path: Path) -> AsyncIterator[World]:
    if request.param == "memory":
        fake = FakeKube()
        for name in ("default", "kube-system", "kruntimes-system"):
            fake.seed(NAMESPACES, PlainObject(metadata=ObjectMeta(name=name)))
        fake.seed(SERVICEACCOUNTS, PlainObject(metadata=ObjectMeta(name="default", namespace=NS)))
        yield World(fake, fake.forget_history)
        return
    if request.param == "cluster":
        async with await KubeClient.connect(CLUSTER, user_agent="contract") as client:
            yield World(client, lambda: pytest.skip("a cluster forgets when it likes"))
        return
    config = Config(data_dir=installation, pki_dir=installation / "pki", crd_dir=packaged_crd_dir(), port=0)
    server = Running(config)
    await server.start()
    path = kubeconfig(
        tmp_path,
        f"https://127.0.0.1:{server.port}",
        user={"token": server.admin_token},
        **{"certificate-authority": str(installation / "pki" / "root.crt")},
    )
    client = await KubeClient.connect(str(path), user_agent="contract")
    yield World(client, lambda: server.store.compact(server.store.revision))
    await client.close()
    await server.stop()


@pytest.fixture
def kube(world: World) -> Kube:
    return world.kube


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def config_map(name: str = "", **labels: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name or unique("map"), namespace=NS, labels=labels), data={"a": "b"})


async def make_run(kube: Kube, **metadata: Any) -> RunObject:
    run = function_run(unique("run"))
    content = {"spec": run.spec, "metadata": {"name": run.metadata.name} | metadata}
    return await kube.create(RUNS, NS, content)


async def revision(kube: Kube, kind: Kind[Any]) -> str:
    return (await kube.list(kind, NS)).resource_version


async def collect(kube: Kube, kind: Kind[Any], since: str, count: int, **selectors: str) -> list[WatchEvent[Any]]:
    events: list[WatchEvent[Any]] = []
    async with asyncio.timeout(5):
        stream: Any = kube.watch(kind, NS, resource_version=since, **selectors)
        async with aclosing(stream):
            async for event in stream:
                if event.type is not WatchType.BOOKMARK:
                    events.append(event)
                if len(events) == count:
                    break
    return events


async def test_what_is_created_is_read_back_with_what_the_api_adds(kube: Kube) -> None:
    made = await kube.create(CONFIGMAPS, NS, config_map(app="x"))
    found = await kube.get(CONFIGMAPS, NS, made.metadata.name)
    assert found == made
    assert found.data == {"a": "b"}
    assert all((found.metadata.uid, found.metadata.resource_version, found.metadata.creation_timestamp))


async def test_a_name_is_taken_once(kube: Kube) -> None:
    made = await kube.create(CONFIGMAPS, NS, config_map())
    with pytest.raises(AlreadyExists):
        await kube.create(CONFIGMAPS, NS, config_map(made.metadata.name))


async def test_a_generated_name_is_made(kube: Kube) -> None:
    made = await kube.create(CONFIGMAPS, NS, {"metadata": {"generateName": "some-"}})
    assert made.metadata.name.startswith("some-")
    assert len(made.metadata.name) > len("some-")


async def test_what_is_absent_is_not_found(kube: Kube) -> None:
    with pytest.raises(NotFound):
        await kube.get(CONFIGMAPS, NS, "absent")
    with pytest.raises(NotFound):
        await kube.delete(CONFIGMAPS, NS, "absent")
    with pytest.raises(NotFound):
        await kube.json_patch(CONFIGMAPS, NS, "absent", [])


async def test_lists_filter_by_label_and_field(kube: Kube) -> None:
    mark = unique("mark")
    one = await kube.create(CONFIGMAPS, NS, config_map(mark=mark, side="left"))
    two = await kube.create(CONFIGMAPS, NS, config_map(mark=mark, side="right"))

    async def names(**selectors: str) -> set[str]:
        found = await kube.list(CONFIGMAPS, NS, **selectors)
        return {item.metadata.name for item in found.items}

    assert await names(labels=f"mark={mark}") == {one.metadata.name, two.metadata.name}
    assert await names(labels=f"mark={mark},side=left") == {one.metadata.name}
    assert await names(labels=f"mark={mark}", fields=f"metadata.name={two.metadata.name}") == {two.metadata.name}


async def test_a_list_of_all_namespaces_has_them_all(kube: Kube) -> None:
    mark = unique("mark")
    for namespace in (NS, "kube-system"):
        await kube.create(CONFIGMAPS, namespace, {"metadata": {"name": mark, "labels": {"mark": mark}}})
    found = await kube.list(CONFIGMAPS, labels=f"mark={mark}")
    assert {item.metadata.namespace for item in found.items} == {NS, "kube-system"}


async def test_a_new_run_is_pending_already(kube: Kube) -> None:
    made = await make_run(kube)
    assert (made.status.phase, made.status.attempt) == ("Pending", 0)
    assert run_from_object(made).phase is Phase.PENDING


async def test_status_is_written_through_its_subresource_only(kube: Kube) -> None:
    made = await make_run(kube)
    name = made.metadata.name
    ops = [{"op": "add", "path": "/status/message", "value": "hello"}]
    assert (await kube.json_patch(RUNS, NS, name, ops)).status.message == ""
    assert (await kube.json_patch(RUNS, NS, name, ops, subresource="status")).status.message == "hello"
    through_status = [{"op": "add", "path": "/spec/cancelRequested", "value": True}]
    assert not (await kube.json_patch(RUNS, NS, name, through_status, subresource="status")).spec.cancel_requested


async def test_a_decision_is_written_once_and_its_test_fails_the_second_time(kube: Kube) -> None:
    made = await make_run(kube)
    before = run_from_object(made)
    after = Status(phase=Phase.SCHEDULED, attempt=1, pod_name="p", pod_uid=PodUID("uid-p"))
    patch = status_patch(before, PatchStatus(Guard(before.phase, before.status.attempt, None), after))
    written = await kube.json_patch(RUNS, NS, made.metadata.name, patch, subresource="status")
    assert run_from_object(written).status == after
    with pytest.raises(Invalid):
        await kube.json_patch(RUNS, NS, made.metadata.name, patch, subresource="status")
    assert (await kube.get(RUNS, NS, made.metadata.name)).metadata.resource_version == written.metadata.resource_version


async def test_the_finalizer_goes_on_and_off_by_its_place(kube: Kube) -> None:
    for others in ([], ["other.example/one"]):
        made = await make_run(kube, finalizers=others)
        ops = [
            {"op": "add", "path": "/status/assignedPod", "value": "p"},
            {"op": "add", "path": "/status/assignedPodUID", "value": "uid-p"},
            {"op": "add", "path": "/status/phase", "value": "Scheduled"},
        ]
        bound = await kube.json_patch(RUNS, NS, made.metadata.name, ops, subresource="status")
        put = put_finalizer_patch(bound, PutFinalizer(0, PodUID("uid-p")))
        on = await kube.json_patch(RUNS, NS, made.metadata.name, put)
        assert on.metadata.finalizers == (*others, FINALIZER)
        with pytest.raises(Invalid):
            await kube.json_patch(RUNS, NS, made.metadata.name, put)
        take = take_finalizer_patch(on, TakeFinalizer(0, PodUID("uid-p")))
        off = await kube.json_patch(RUNS, NS, made.metadata.name, take)
        assert off.metadata.finalizers == tuple(others)


async def test_a_finalizer_holds_a_deleted_object_until_it_is_taken(kube: Kube) -> None:
    made = await make_run(kube, finalizers=[FINALIZER])
    name = made.metadata.name
    since = await revision(kube, RUNS)
    await kube.delete(RUNS, NS, name)
    held = await kube.get(RUNS, NS, name)
    assert held.metadata.deleting
    with pytest.raises(Invalid):
        await kube.json_patch(RUNS, NS, name, [{"op": "add", "path": "/metadata/finalizers/-", "value": "other/one"}])
    await kube.json_patch(RUNS, NS, name, take_finalizer_patch(held, TakeFinalizer(0, None)))
    with pytest.raises(NotFound):
        await kube.get(RUNS, NS, name)
    events = await collect(kube, RUNS, since, 2)
    assert [event.type for event in events] == [WatchType.MODIFIED, WatchType.DELETED]


async def test_a_deletion_with_another_uid_changes_nothing(kube: Kube) -> None:
    made = await kube.create(CONFIGMAPS, NS, config_map())
    with pytest.raises(Conflict):
        await kube.delete(CONFIGMAPS, NS, made.metadata.name, uid="another")
    await kube.delete(CONFIGMAPS, NS, made.metadata.name, uid=made.metadata.uid)
    with pytest.raises(NotFound):
        await kube.get(CONFIGMAPS, NS, made.metadata.name)


async def test_a_pod_on_a_node_ends_after_its_grace(kube: Kube) -> None:
    template = runtime_pod(unique("pod"))
    content = {"metadata": {"name": template.metadata.name}, "spec": template.spec}
    made = await kube.create(PODS, NS, content)
    await kube.delete(PODS, NS, made.metadata.name, grace_seconds=5)
    ending = await kube.get(PODS, NS, made.metadata.name)
    assert (ending.metadata.deleting, ending.metadata.deletion_grace_period_seconds) == (True, 5)
    assert not ending.ready
    await kube.delete(PODS, NS, made.metadata.name, grace_seconds=0)
    with pytest.raises(NotFound):
        await kube.get(PODS, NS, made.metadata.name)


async def test_an_update_of_an_older_version_is_a_conflict(kube: Kube) -> None:
    lease = Lease(metadata=ObjectMeta(name=unique("lease"), namespace=NS), spec=LeaseSpec(holder_identity="a"))
    first = await kube.create(LEASES, NS, lease)
    taken = {"metadata": {"name": first.metadata.name, "resourceVersion": first.metadata.resource_version}}
    second = await kube.update(LEASES, NS, taken | {"spec": {"holderIdentity": "b"}})
    assert second.spec.holder_identity == "b"
    with pytest.raises(Conflict):
        await kube.update(LEASES, NS, taken | {"spec": {"holderIdentity": "c"}})


async def test_a_merge_patch_merges_and_null_removes(kube: Kube) -> None:
    made = await kube.create(CONFIGMAPS, NS, config_map(app="x"))
    patched = await kube.merge_patch(
        CONFIGMAPS, NS, made.metadata.name, {"data": {"a": None, "c": "d"}, "metadata": {"labels": {"more": "y"}}}
    )
    assert (patched.data, patched.metadata.labels) == ({"c": "d"}, {"app": "x", "more": "y"})


async def test_a_patch_that_changes_nothing_makes_no_new_version(kube: Kube) -> None:
    made = await kube.create(CONFIGMAPS, NS, config_map())
    same = await kube.merge_patch(CONFIGMAPS, NS, made.metadata.name, {"data": {"a": "b"}})
    assert same.metadata.resource_version == made.metadata.resource_version


async def test_server_side_apply_creates_and_then_changes(kube: Kube) -> None:
    name = unique("applied")
    made = await kube.server_side_apply(
        CONFIGMAPS, NS, name, {"metadata": {"name": name}, "data": {"a": "1"}}, manager="kruntimes"
    )
    assert made.data == {"a": "1"}
    changed = await kube.server_side_apply(
        CONFIGMAPS, NS, name, {"metadata": {"name": name}, "data": {"a": "2"}}, manager="kruntimes"
    )
    assert (changed.data, changed.metadata.uid) == ({"a": "2"}, made.metadata.uid)


async def test_a_watch_shows_each_change_in_order(kube: Kube) -> None:
    mark = unique("mark")
    since = await revision(kube, CONFIGMAPS)
    made = await kube.create(CONFIGMAPS, NS, config_map(mark, mark=mark))
    await kube.merge_patch(CONFIGMAPS, NS, mark, {"data": {"a": "c"}})
    await kube.delete(CONFIGMAPS, NS, mark)
    events = await collect(kube, CONFIGMAPS, since, 3, labels=f"mark={mark}")
    assert [event.type for event in events] == [WatchType.ADDED, WatchType.MODIFIED, WatchType.DELETED]
    assert events[0].object == made
    versions = [int(event.resource_version) for event in events]
    assert versions == sorted(versions)
    assert [int(event.object.metadata.resource_version) for event in events] == versions


async def test_a_watch_starts_behind_its_revision(kube: Kube) -> None:
    mark = unique("mark")
    first = await kube.create(CONFIGMAPS, NS, config_map(f"{mark}-a", mark=mark))
    await kube.create(CONFIGMAPS, NS, config_map(f"{mark}-b", mark=mark))
    events = await collect(kube, CONFIGMAPS, first.metadata.resource_version, 1, labels=f"mark={mark}")
    assert events[0].object.metadata.name == f"{mark}-b"


async def test_what_enters_or_leaves_a_selector_is_added_or_deleted(kube: Kube) -> None:
    made = await make_run(kube)
    name, since = made.metadata.name, made.metadata.resource_version
    leave = [{"op": "add", "path": "/status/phase", "value": "Cancelled"}]
    await kube.json_patch(RUNS, NS, name, leave, subresource="status")
    pending = await collect(kube, RUNS, since, 1, fields="status.phase=Pending")
    assert (pending[0].type, pending[0].object.metadata.name) == (WatchType.DELETED, name)
    cancelled = await collect(kube, RUNS, since, 1, fields="status.phase=Cancelled")
    assert (cancelled[0].type, cancelled[0].object.metadata.name) == (WatchType.ADDED, name)


async def test_a_watch_from_a_revision_that_is_forgotten_is_gone(world: World) -> None:
    since = await revision(world.kube, CONFIGMAPS)
    await world.kube.create(CONFIGMAPS, NS, config_map())
    world.forget_history()
    with pytest.raises(Gone):
        await collect(world.kube, CONFIGMAPS, since, 1)


async def test_an_informer_follows_it(kube: Kube) -> None:
    mark = unique("mark")
    await kube.create(CONFIGMAPS, NS, config_map(f"{mark}-a", mark=mark))
    informer = Informer(
        kube, CONFIGMAPS, namespace=NS, labels=f"mark={mark}", on_change=lambda _: None, clock=SystemClock()
    )
    task: asyncio.Task[None] = asyncio.create_task(informer.run())
    try:
        await eventually(lambda: informer.stale_since() is None)
        await kube.create(CONFIGMAPS, NS, config_map(f"{mark}-b", mark=mark))
        await kube.delete(CONFIGMAPS, NS, f"{mark}-a")
        await eventually(lambda: [obj.metadata.name for obj in informer.store.values()] == [f"{mark}-b"])
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_dependents_go_with_their_owner(kube: Kube) -> None:
    owner = await kube.create(CONFIGMAPS, NS, config_map())
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
    }
    name = unique("dependent")
    made = await kube.create(CONFIGMAPS, NS, {"metadata": {"name": name, "ownerReferences": [reference]}})
    await kube.delete(CONFIGMAPS, NS, owner.metadata.name, propagation="Background")
    events = await collect(kube, CONFIGMAPS, made.metadata.resource_version, 1, fields=f"metadata.name={name}")
    assert events[0].type is WatchType.DELETED


async def test_a_bound_token_says_who_holds_it(kube: Kube) -> None:
    template = runtime_pod(unique("pod"))
    content = {"metadata": {"name": template.metadata.name}, "spec": {**SPEC, "serviceAccountName": "default"}}
    pod: Pod = await kube.create(PODS, NS, content)
    answer = await kube.create_token(
        NS, "default", audiences=("kruntimes",), pod_name=pod.metadata.name, pod_uid=pod.metadata.uid
    )
    review = await kube.create_review(
        TOKENREVIEWS, TokenReview(spec=TokenReviewSpec(token=answer.token, audiences=("kruntimes", "other")))
    )
    assert review.status.authenticated
    assert review.status.audiences == ("kruntimes",)
    assert review.status.user.username == "system:serviceaccount:default:default"
    assert review.status.user.extra["authentication.kubernetes.io/pod-name"] == (pod.metadata.name,)
    assert review.status.user.extra["authentication.kubernetes.io/pod-uid"] == (pod.metadata.uid,)
    assert answer.expires_us is not None
    other = TokenReview(spec=TokenReviewSpec(token=answer.token, audiences=("other",)))
    assert not (await kube.create_review(TOKENREVIEWS, other)).status.authenticated


SPEC = {"containers": [{"name": "runtime", "image": "kruntimes/python-runtime"}]}


async def test_who_has_no_role_may_not(kube: Kube) -> None:
    asked = ResourceAttributes(namespace=NS, verb="get", group="kruntimes.io", resource="runs", name="it")
    question = SubjectAccessReview(spec=SubjectAccessReviewSpec(user="nobody", resource_attributes=asked))
    answered = await kube.create_review(SUBJECTACCESSREVIEWS, question)
    assert not answered.status.allowed


async def test_events_are_recorded_and_counted(kube: Kube) -> None:
    made = await make_run(kube)
    recorder = EventRecorder(kube, "contract", SystemClock())
    for _ in range(2):
        recorder.emit(made, "Normal", "Bound", "Assigned to Pod p")
    await recorder.flush()
    found = (await kube.list(EVENTS, NS, fields=f"involvedObject.uid={made.metadata.uid}")).items
    assert [(event.reason, event.count) for event in found] == [("Bound", 2)]
    assert recorder.dropped == 0


async def test_an_untyped_kind_keeps_every_field(kube: Kube) -> None:
    made = await make_run(kube, annotations={"example.com/note": "kept"})
    found = await kube.get(RUNS.untyped(), NS, made.metadata.name)
    assert found["metadata"]["annotations"] == {"example.com/note": "kept"}
    assert (found["apiVersion"], found["kind"]) == ("kruntimes.io/v1alpha1", "Run")
    assert found["spec"]["source"]["inlinePath"] == "main.py"


async def test_cluster_scoped_kinds_need_no_namespace(kube: Kube) -> None:
    assert (await kube.get(NAMESPACES, None, "default")).metadata.name == "default"
    assert {"default", "kube-system"} <= {item.metadata.name for item in (await kube.list(NAMESPACES)).items}
