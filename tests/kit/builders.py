"""API objects in the states that tests start from. Every argument has a default; names and UIDs are readable."""

from typing import Any

import msgspec

from controlplane.kube.types import (
    Condition,
    Endpoint,
    EndpointConditions,
    EndpointPort,
    EndpointSlice,
    ObjectMeta,
    ObjectReference,
    Pod,
    RunObject,
    RuntimeObject,
)

CREATED = "2026-01-01T00:00:00Z"
INLINE = 'def invoke(request):\n    return {"outputs": {"summary": "diagnosis complete"}}\n'


def function_run(
    name: str = "diagnose-service",
    *,
    namespace: str = "default",
    uid: str = "",
    runtime: str = "python",
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
) -> RunObject:
    """A function Run; `spec`, `status` and `metadata` are merged over the defaults, in the API's field names."""
    content = {
        "runtime": runtime,
        "source": {"inlinePath": "main.py", "inline": INLINE},
        "mode": {"function": {"handler": "main.invoke"}},
    }
    return _run(name, namespace, uid, content | (spec or {}), status or {}, metadata or {})


def task_run(
    name: str = "summarize-once",
    *,
    namespace: str = "default",
    uid: str = "",
    runtime: str = "python",
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
) -> RunObject:
    """A task Run, as `function_run`."""
    content = {
        "runtime": runtime,
        "source": {"inline": 'print("hello")\n'},
        "mode": {"task": {"entrypoint": "main.py", "args": ["--verbose"]}},
    }
    return _run(name, namespace, uid, content | (spec or {}), status or {}, metadata or {})


def assigned(phase: str, *, pod: str = "runtime-python-1", pod_uid: str = "pod-1", attempt: int = 1) -> dict[str, Any]:
    """The `status` of a Run that this Pod owns."""
    return {
        "phase": phase,
        "attempt": attempt,
        "assignedPod": pod,
        "assignedPodUID": pod_uid,
        "conditions": [{"type": "Scheduled", "status": "True", "reason": "Bound", "lastTransitionTime": CREATED}],
    } | ({} if phase == "Scheduled" else {"startTime": "2026-01-01T00:00:01.000000Z"})


def _run(
    name: str, namespace: str, uid: str, spec: dict[str, Any], status: dict[str, Any], metadata: dict[str, Any]
) -> RunObject:
    return msgspec.convert(
        {
            "apiVersion": "kruntimes.io/v1alpha1",
            "kind": "Run",
            "metadata": _metadata(name, namespace, uid or f"uid-{name}") | metadata,
            "spec": spec,
            "status": {"phase": "Pending", "attempt": 0, "failures": 0} | status,
        },
        RunObject,
    )


def runtime_object(
    name: str = "python", *, namespace: str = "default", replicas: int = 1, runs: int | str = 2, uid: str = ""
) -> RuntimeObject:
    """A Runtime whose Pods hold `runs` Runs each."""
    return msgspec.convert(
        {
            "apiVersion": "kruntimes.io/v1alpha1",
            "kind": "Runtime",
            "metadata": _metadata(name, namespace, uid or f"uid-runtime-{name}"),
            "spec": {
                "template": {
                    "spec": {"containers": [{"name": "runtime", "image": f"kruntimes/{name}-runtime"}]},
                },
                "replicas": replicas,
                "capacity": {"resources": {"runs": runs}},
            },
        },
        RuntimeObject,
    )


def runtime_pod(
    name: str = "runtime-python-1",
    *,
    namespace: str = "default",
    uid: str = "pod-1",
    runtime: str = "python",
    phase: str = "Running",
    ready: bool = True,
    ip: str = "127.0.0.2",
    deleting: bool = False,
    node: str = "local",
    container_states: dict[str, dict[str, Any]] | None = None,
) -> Pod:
    """A Pod of a Runtime. `container_states`: state by container name, e.g. `{"runtime": {"terminated": {}}}`."""
    states: dict[str, dict[str, Any]] = {"runtimed": {"running": {}}, "runtime": {"running": {}}}
    states |= container_states or {}
    statuses = {
        key: {"name": key, "ready": ready and "running" in value, "state": value} for key, value in states.items()
    }
    metadata = _metadata(name, namespace, uid) | {"labels": {"kruntimes.io/runtime": runtime}}
    if deleting:
        metadata |= {"deletionTimestamp": "2026-01-01T00:10:00Z", "deletionGracePeriodSeconds": 330}
    return msgspec.convert(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {
                "nodeName": node,
                "serviceAccountName": f"runtime-{runtime}",
                "initContainers": [{"name": "runtimed", "image": "kruntimes/runtimed", "restartPolicy": "Always"}],
                "containers": [{"name": "runtime", "image": f"kruntimes/{runtime}-runtime"}],
            },
            "status": {
                "phase": phase,
                "podIP": ip,
                "startTime": CREATED,
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                "initContainerStatuses": [statuses["runtimed"]],
                "containerStatuses": [status for key, status in statuses.items() if key != "runtimed"],
            },
        },
        Pod,
    )


def endpoint_slice(runtime: str = "python", *pods: Pod, namespace: str = "default", port: int = 8443) -> EndpointSlice:
    """The EndpointSlice of a Runtime's Service over these Pods."""
    return EndpointSlice(
        metadata=ObjectMeta(
            name=f"runtime-{runtime}-1",
            namespace=namespace,
            uid=f"uid-slice-{runtime}",
            labels={"kubernetes.io/service-name": f"runtime-{runtime}", "kruntimes.io/runtime": runtime},
        ),
        endpoints=tuple(
            Endpoint(
                addresses=(pod.status.pod_ip,),
                conditions=EndpointConditions(ready=pod.ready, serving=pod.ready, terminating=pod.metadata.deleting),
                target_ref=ObjectReference(
                    kind="Pod", name=pod.metadata.name, namespace=namespace, uid=pod.metadata.uid
                ),
                node_name=pod.spec.node_name,
            )
            for pod in pods
        ),
        ports=(EndpointPort(name="runtimed", port=port),),
    )


def condition(type_: str, status: bool, reason: str = "", message: str = "") -> Condition:
    """A condition without a transition time."""
    return Condition(type=type_, status="True" if status else "False", reason=reason, message=message)


def _metadata(name: str, namespace: str, uid: str) -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "uid": uid, "creationTimestamp": CREATED, "resourceVersion": "1"}
