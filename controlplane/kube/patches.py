"""Commands of the lifecycle as JSON Patches whose tests say what they are valid for. Pure.

A failed test is 422 (`errors.Invalid`) and changes nothing: read again and decide anew. The shells send
`status_patch` to the status subresource and the finalizer's patches to the object itself.
"""

import base64
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from controlplane.kube.codec import format_time
from controlplane.kube.translate import FINALIZER
from controlplane.kube.types_kruntimes import RunObject
from statemachine.commands import PatchStatus, PutFinalizer, TakeFinalizer
from statemachine.run import ArtifactRef, Condition, Run, Status

Op = dict[str, Any]


def status_patch(before: Run, command: PatchStatus, *, ca_bundle: str | None = None) -> list[Op]:
    """The patch of `/status` that makes what `before` shows into `command.status`, if uid and guard still hold.

    `ca_bundle` is the PEM of the installation's root: it goes with an endpoint that is new, base64-encoded. Fields that
    do not change are not in the patch; conditions are written whole. An empty change still tests.
    """
    guard = command.guard
    old, new = status_fields(before.status), status_fields(command.status)
    if before.status.endpoint_url is not None and before.status.endpoint_url == command.status.endpoint_url:
        del old["endpoint"], new["endpoint"]  # its caBundle is not ours to compare: what is written stays
    elif ca_bundle is not None and "endpoint" in new:
        new["endpoint"]["caBundle"] = encoded_bundle(ca_bundle)
    changes = [_change(name, old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys())]
    return [
        _test("/metadata/uid", before.uid),
        _test("/status/phase", str(guard.phase)),
        *_epoch_tests(guard.attempt, guard.pod_uid),
        *(change for change in changes if change is not None),
    ]


def bundle_patch(run: Run, ca_bundle: str) -> list[Op]:
    """The patch of `/status` that publishes other roots with the endpoint of a Run that is Ready, if it still is."""
    return [
        _test("/metadata/uid", run.uid),
        _test("/status/phase", str(run.phase)),
        *_epoch_tests(run.status.attempt, run.status.pod_uid),
        {"op": "add", "path": "/status/endpoint/caBundle", "value": encoded_bundle(ca_bundle)},
    ]


def encoded_bundle(ca_bundle: str) -> str:
    """Roots as an endpoint has them: base64 of PEM."""
    return base64.b64encode(ca_bundle.encode()).decode()


def _change(name: str, old: Any, new: Any) -> Op | None:
    """`add` also replaces: it holds whether or not the API fills the field in by itself."""
    if old == new:
        return None
    path = f"/status/{name}"
    return {"op": "remove", "path": path} if new is None else {"op": "add", "path": path, "value": new}


def put_finalizer_patch(obj: RunObject, command: PutFinalizer) -> list[Op]:
    """Puts our finalizer at the end of the list that `obj` shows, if uid, epoch and that list still hold.

    Empty if it is there already. On an object that is deleting the API refuses it (422).
    """
    finalizers = obj.metadata.finalizers
    if FINALIZER in finalizers:
        return []
    ops = [_test("/metadata/uid", obj.metadata.uid), *_epoch_tests(command.attempt, command.pod_uid)]
    if finalizers:
        return [
            *ops,
            _test("/metadata/finalizers", list(finalizers)),
            {"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER},
        ]
    # A test for null holds where the member is absent, here as in kube-apiserver.
    return [
        *ops,
        _test("/metadata/finalizers", None),
        {"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]},
    ]


def take_finalizer_patch(obj: RunObject, command: TakeFinalizer) -> list[Op]:
    """Takes our finalizer from its place, if uid, epoch and place still hold. Empty if it is not there."""
    if FINALIZER not in obj.metadata.finalizers:
        return []
    place = f"/metadata/finalizers/{obj.metadata.finalizers.index(FINALIZER)}"
    return [
        _test("/metadata/uid", obj.metadata.uid),
        *_epoch_tests(command.attempt, command.pod_uid),
        _test(place, FINALIZER),
        {"op": "remove", "path": place},
    ]


def finalizer_taken(answer: RunObject) -> RunObject | None:
    """What the answer to `take_finalizer_patch` shows: the object without our finalizer, None when it is gone by that.

    kube-apiserver answers the patch that lets a deleting object go with the object as it was stored before, finalizer
    and resourceVersion included.
    """
    left = tuple(name for name in answer.metadata.finalizers if name != FINALIZER)
    if answer.metadata.deleting and not left:
        return None
    return replace(answer, metadata=replace(answer.metadata, finalizers=left))


def status_fields(status: Status) -> dict[str, Any]:
    """`status` as the API has it. Absent fields are left out; phase, attempt and failures never are."""
    fields: dict[str, Any] = {
        "phase": str(status.phase),
        "reason": str(status.reason),
        "message": status.message,
        "attempt": status.attempt,
        "failures": status.failures,
        "assignedPod": status.pod_name,
        "assignedPodUID": status.pod_uid,
        "endpoint": None if status.endpoint_url is None else {"protocol": "HTTPS", "url": status.endpoint_url},
        "conditions": _conditions(status),
        "startTime": _time(status.start_us),
        "readyTime": _time(status.ready_us),
        "completionTime": _time(status.completion_us),
        "nextAttemptTime": _time(status.next_attempt_us),
        "release": None
        if status.release is None
        else {"target": str(status.release.target), "reason": str(status.release.reason)},
        "exitCode": status.result.exit_code,
        "outputs": dict(status.result.outputs),
        "artifactRefs": [_artifact(ref) for ref in status.result.artifact_refs],
    }
    return {name: value for name, value in fields.items() if value not in (None, "", [], {})}


def _conditions(status: Status) -> list[dict[str, str]]:
    return [
        _condition(name, condition)
        for name, condition in (("Scheduled", status.scheduled), ("Ready", status.ready))
        if condition is not None
    ]


def _condition(name: str, condition: Condition) -> dict[str, str]:
    fields = {
        "type": name,
        "status": "True" if condition.status else "False",
        "reason": str(condition.reason),
        "message": condition.message,
        "lastTransitionTime": format_time(condition.since_us),
    }
    return {key: value for key, value in fields.items() if value}


def _artifact(ref: ArtifactRef) -> Mapping[str, Any]:
    fields = {"name": ref.name, "uri": ref.uri, "sizeBytes": ref.size_bytes, "digest": ref.digest}
    return {key: value for key, value in fields.items() if value is not None}


def _epoch_tests(attempt: int, pod_uid: str | None) -> list[Op]:
    """No Pod UID means that there is no Pod to test for: phase and attempt say so by themselves."""
    ops = [_test("/status/attempt", attempt)]
    if pod_uid is not None:
        ops.append(_test("/status/assignedPodUID", pod_uid))
    return ops


def _test(path: str, value: Any) -> Op:
    return {"op": "test", "path": path, "value": value}


def _time(us: int | None) -> str | None:
    return None if us is None else format_time(us)
