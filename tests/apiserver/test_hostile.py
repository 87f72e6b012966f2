"""Nothing that a client sends is our error: valid requests, broken in a few places, by seed."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.apiserver.harness import (
    APPLY_PATCH,
    CONFIG_MAPS,
    JSON_PATCH,
    MERGE_PATCH,
    PODS,
    RUNS,
    STRATEGIC_PATCH,
    TABLE,
    Api,
    Object,
    config_map,
    owned_by,
    run,
)
from tests.apiserver.test_definitions import DEFINITIONS, definition

REQUESTS = 300
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "o", "uid": "u"}}
CONTAINER = {
    "name": "c",
    "image": "i",
    "env": [{"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "ports": [{"containerPort": 80}],
    "readinessProbe": {"exec": {"command": ["x"]}},
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    "resources": {"limits": {"cpu": "1"}},
}
POD_SPEC = {
    "containers": [CONTAINER],
    "initContainers": [{"name": "i", "image": "x", "restartPolicy": "Always"}],
    "volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}],
    "tolerations": [{"key": "x"}],
    "nodeName": "local",
}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": POD_SPEC}
SELECTOR = {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
STATE = {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z"}}
RBAC = "/apis/rbac.authorization.k8s.io/v1"
SEEDS: list[tuple[str, Object]] = [
    (
        PODS,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "labels": {"a": "b"}, "finalizers": ["a/b"], "ownerReferences": owned_by(OWNER)},
            "spec": POD_SPEC,
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 1, "lastState": STATE}]},
        },
    ),
    (
        "/apis/apps/v1/namespaces/default/deployments",
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d"},
            "spec": {"replicas": 1, "selector": SELECTOR, "template": TEMPLATE, "strategy": {"type": "Recreate"}},
        },
    ),
    ("/apis/apps/v1/namespaces/default/deployments/d/scale", {"metadata": {"name": "d"}, "spec": {"replicas": 1}}),
    (f"{PODS}/p/eviction", {"deleteOptions": {"gracePeriodSeconds": 1, "preconditions": {"uid": "x"}}}),
    (CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", **config_map("c", annotations={"a": "b"})}),
    (
        "/api/v1/namespaces/default/services",
        {"metadata": {"name": "s"}, "spec": {"ports": [{"name": "a", "port": 80}], "selector": {"a": "b"}}},
    ),
    (
        "/api/v1/namespaces/default/secrets",
        {"metadata": {"name": "s"}, "stringData": {"a": "b"}, "data": {"b": "Yg=="}},
    ),
    (
        "/api/v1/namespaces/default/events",
        {
            "metadata": {"name": "e"},
            "involvedObject": {"kind": "Pod", "namespace": "default"},
            "source": {},
            "count": 1,
        },
    ),
    (f"{RBAC}/namespaces/default/roles", {"metadata": {"name": "r"}, "rules": [{"verbs": ["get"], "apiGroups": [""]}]}),
    (f"{RBAC}/clusterroles", {"metadata": {"name": "r"}, "aggregationRule": {"clusterRoleSelectors": [SELECTOR]}}),
    (
        f"{RBAC}/namespaces/default/rolebindings",
        {
            "metadata": {"name": "r"},
            "roleRef": {"kind": "Role", "name": "r"},
            "subjects": [{"kind": "User", "name": "u"}],
        },
    ),
    ("/api/v1/namespaces", {"metadata": {"name": "n"}}),
    (DEFINITIONS, definition(selectableFields=[{"jsonPath": ".spec.size"}], additionalPrinterColumns=[{"name": "X"}])),
    (
        RUNS,
        {**run("r", env=[{"name": "A", "value": "b"}], timeout="1h"), "status": {"phase": "Ready", "conditions": []}},
    ),
    ("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x", "audiences": ["a"]}}),
    (
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {"spec": {"user": "u", "groups": ["g"], "resourceAttributes": {"verb": "get", "resource": "pods"}}},
    ),
    (
        "/api/v1/namespaces/default/serviceaccounts/default/token",
        {"spec": {"audiences": ["a"], "expirationSeconds": 600, "boundObjectRef": {"kind": "Pod", "name": "p"}}},
    ),
]
ODD: list[Any] = [None, 0, -1, 1.5, 1e300, 2**63, "", "x", "a b", "\0", "é" * 70, [], {}, [None], {"": ""}, True, [[]]]
ODD += [{"a": {"b": [1, {}]}}, "9999-99-99T00:00:00Z", "x" * 300]
QUERIES = ["", "", "?dryRun=All", "?fieldValidation=Strict", "?fieldManager=m&force=true", "?gracePeriodSeconds=0"]
QUERIES += ["?limit=1", "?propagationPolicy=Foreground", "?propagationPolicy=Orphan", "?watch=1&timeoutSeconds=1"]
PATCHES = [JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH]


def paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        yield (*above, name)
        yield from paths(member, (*above, name))


def broken(item: Object, dice: random.Random) -> Object:
    """A copy with up to three members replaced, removed or added."""
    item = copy.deepcopy(item)
    for _ in range(dice.choice([0, 1, 1, 1, 2, 3])):
        every = list(paths(item))
        if not every:
            break
        *parents, last = dice.choice(every)
        place: Any = item
        for step in parents:
            place = place[step]
        odd = copy.deepcopy(dice.choice(ODD))
        match dice.randrange(4):
            case 0 | 1:
                place[last] = odd
            case 2:
                del place[last]
            case _ if isinstance(place, dict):
                place[dice.choice(["x", "name", "kind", "$patch", "metadata", "spec", ""])] = odd
            case _:
                place.append(odd)
    return item


def pointer(steps: tuple[Any, ...]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def operations(item: Object, dice: random.Random) -> list[Object]:
    every = list(paths(item))
    kinds = ["add", "remove", "replace", "test", "move", "copy"]
    return [
        {
            "op": dice.choice(kinds),
            "path": pointer(dice.choice(every)),
            "from": pointer(dice.choice(every)),
            "value": dice.choice(ODD),
        }
        for _ in range(dice.choice([1, 1, 2]))
    ]


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_request_is_answered_with_an_error_of_ours(api: Api, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(REQUESTS):
        path, item = dice.choice(SEEDS)
        method = dice.choice(["POST", "POST", "PUT", "PATCH", "PATCH", "PATCH", "DELETE"])
        name = item.get("metadata", {}).get("name", "")
        target = path if method == "POST" or not name or path.endswith("scale") else f"{path}/{name}"
        target += dice.choice(["", "", "", "/status"]) if method in {"PUT", "PATCH"} else ""
        content_type = dice.choice(PATCHES) if method == "PATCH" else "application/json"
        body: Any = operations(item, dice) if content_type == JSON_PATCH else broken(item, dice)
        data = json.dumps(body).encode()
        data = data[: dice.randrange(len(data))] if dice.random() < 0.03 else data
        target += dice.choice(QUERIES)
        answer = await api.call(
            method,
            target,
            data,
            content_type=content_type,
            headers={"Accept": dice.choice([TABLE, "application/json"])},
        )
        assert answer.code < 500, (method, target, content_type, data, answer.body)
