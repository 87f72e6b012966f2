"""Columns of Tables for the built-in kinds, as kubectl shows them.

Lives here: cells of core kinds and of CRD printer columns. May not live here: Table encoding (`tables.py`).
`builtin.py` and `custom.py` put them into their rows.
"""

import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from controlplane.embedded.apiserver import jsonpath
from controlplane.embedded.apiserver.kinds import Column, Object
from controlplane.embedded.apiserver.meta import parse_timestamp
from controlplane.embedded.apiserver.tables import age_of, human_duration

AGE: Final = Column("Age", age_of(".metadata.creationTimestamp"), description="Time since the object was created.")


def at(name: str, path: str, *, default: Any = "", type: str = "string", wide: bool = False) -> Column:
    """A column that shows the value at a JSONPath."""

    def cell(item: Object, now: datetime.datetime) -> Any:
        value = jsonpath.first(path, item)
        return default if value is None else value

    return Column(name, cell, type=type, priority=1 if wide else 0, description=name)


def of(name: str, read: Callable[[Object], Any], *, type: str = "string", wide: bool = False) -> Column:
    return Column(name, lambda item, now: read(item), type=type, priority=1 if wide else 0, description=name)


def _count(path: str) -> Callable[[Object], int]:
    return lambda item: len(jsonpath.first(path, item) or ())


def _labels(labels: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in (labels or {}).items()) or "<none>"


def _joined(values: Iterable[Any]) -> str:
    return ",".join(str(value) for value in values) or "<none>"


def _containers(item: Object) -> list[Object]:
    found: list[Object] = jsonpath.first(".spec.containers", item) or []
    sidecars = [c for c in jsonpath.first(".spec.initContainers", item) or [] if c.get("restartPolicy") == "Always"]
    return [*sidecars, *found]


def _statuses(item: Object) -> list[Object]:
    status = item.get("status") or {}
    known = {container["name"] for container in _containers(item)}
    every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return [each for each in every if each["name"] in known]


def pod_ready(item: Object) -> str:
    ready = sum(bool(status.get("ready")) for status in _statuses(item))
    return f"{ready}/{len(_containers(item))}"


def pod_status(item: Object) -> str:
    """The one word of `kubectl get pods`: a container's trouble before the phase, deletion before both."""
    status = item.get("status") or {}
    word = status.get("reason") or status.get("phase") or "Unknown"
    for container in reversed(_statuses(item)):
        state = container.get("state") or {}
        waiting, terminated = state.get("waiting"), state.get("terminated")
        if waiting and waiting.get("reason"):
            word = waiting["reason"]
        elif terminated:
            word = terminated.get("reason") or f"ExitCode:{terminated.get('exitCode', 0)}"
    return "Terminating" if item["metadata"].get("deletionTimestamp") else str(word)


def _pod_restarts(item: Object, now: datetime.datetime) -> str:
    statuses = _statuses(item)
    restarts = sum(status.get("restartCount", 0) for status in statuses)
    ends = [jsonpath.first(".lastState.terminated.finishedAt", status) for status in statuses]
    times = [at for at in (parse_timestamp(text) for text in ends if text) if at]
    if restarts and times:
        return f"{restarts} ({human_duration((now - max(times)).total_seconds())} ago)"
    return str(restarts)


PODS: Final = (
    of("Ready", pod_ready),
    of("Status", pod_status),
    Column("Restarts", _pod_restarts, description="Restarts"),
    AGE,
    at("IP", ".status.podIP", default="<none>", wide=True),
    at("Node", ".spec.nodeName", default="<none>", wide=True),
    at("Nominated Node", ".status.nominatedNodeName", default="<none>", wide=True),
    of("Readiness Gates", lambda item: "<none>", wide=True),
)


def _service_ports(item: Object) -> str:
    ports = jsonpath.first(".spec.ports", item) or ()
    return _joined(f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in ports)


SERVICES: Final = (
    at("Type", ".spec.type"),
    at("Cluster-IP", ".spec.clusterIP", default="<none>"),
    of("External-IP", lambda item: "<none>"),
    of("Port(s)", _service_ports),
    AGE,
    of("Selector", lambda item: _labels(jsonpath.first(".spec.selector", item)), wide=True),
)


def _template(item: Object, field: str) -> str:
    return _joined(each.get(field, "") for each in jsonpath.first(".spec.template.spec.containers", item) or ())


def _match_labels(item: Object) -> str:
    return _labels(jsonpath.first(".spec.selector.matchLabels", item))


_WORKLOAD_WIDE: Final = (
    of("Containers", lambda item: _template(item, "name"), wide=True),
    of("Images", lambda item: _template(item, "image"), wide=True),
    of("Selector", _match_labels, wide=True),
)


def _deployment_ready(item: Object) -> str:
    ready = jsonpath.first(".status.readyReplicas", item) or 0
    return f"{ready}/{jsonpath.first('.spec.replicas', item) or 0}"


DEPLOYMENTS: Final = (
    of("Ready", _deployment_ready),
    at("Up-to-date", ".status.updatedReplicas", default=0, type="integer"),
    at("Available", ".status.availableReplicas", default=0, type="integer"),
    AGE,
    *_WORKLOAD_WIDE,
)
REPLICASETS: Final = (
    at("Desired", ".spec.replicas", default=0, type="integer"),
    at("Current", ".status.replicas", default=0, type="integer"),
    at("Ready", ".status.readyReplicas", default=0, type="integer"),
    AGE,
    *_WORKLOAD_WIDE,
)


def _event_age(item: Object, now: datetime.datetime) -> str:
    first = item.get("firstTimestamp") or item.get("eventTime") or item["metadata"].get("creationTimestamp")
    last = jsonpath.first(".series.lastObservedTime", item) or item.get("lastTimestamp") or first
    count = jsonpath.first(".series.count", item) or item.get("count") or 1
    seen, began = parse_timestamp(str(last)), parse_timestamp(str(first))
    if seen is None:
        return "<unknown>"
    age = human_duration((now - seen).total_seconds())
    if count > 1 and began is not None:
        return f"{age} (x{count} over {human_duration((now - began).total_seconds())})"
    return age


def _event_object(item: Object) -> str:
    involved = item.get("involvedObject") or {}
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _event_source(item: Object) -> str:
    source = item.get("source") or {}
    component = source.get("component") or item.get("reportingComponent") or ""
    host = source.get("host") or item.get("reportingInstance") or ""
    return f"{component}, {host}" if host else str(component)


EVENTS: Final = (
    Column("Last Seen", _event_age, description="Last Seen"),
    at("Type", ".type"),
    at("Reason", ".reason"),
    of("Object", _event_object),
    at("Subobject", ".involvedObject.fieldPath", wide=True),
    of("Source", _event_source, wide=True),
    of("Message", lambda item: str(item.get("message") or "").strip()),
    Column("First Seen", age_of(".firstTimestamp"), priority=1, description="First Seen"),
    at("Count", ".count", default=1, type="integer", wide=True),
    at("Name", ".metadata.name", wide=True),
)

NAMESPACES: Final = (at("Status", ".status.phase"), AGE)
SERVICE_ACCOUNTS: Final = (of("Secrets", _count(".secrets"), type="string"), AGE)
CONFIG_MAPS: Final = (
    of("Data", lambda item: len(item.get("data") or ()) + len(item.get("binaryData") or ()), type="integer"),
    AGE,
)
SECRETS: Final = (at("Type", ".type"), of("Data", _count(".data"), type="integer"), AGE)


def _node_status(item: Object) -> str:
    ready = jsonpath.first('.status.conditions[?(@.type=="Ready")].status', item)
    word = {"True": "Ready", "False": "NotReady"}.get(str(ready), "Unknown")
    return f"{word},SchedulingDisabled" if jsonpath.first(".spec.unschedulable", item) else word


def _node_roles(item: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = item["metadata"].get("labels") or {}
    return _joined(sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix)))


NODES: Final = (
    of("Status", _node_status),
    of("Roles", _node_roles),
    AGE,
    at("Version", ".status.nodeInfo.kubeletVersion"),
    at("Internal-IP", '.status.addresses[?(@.type=="InternalIP")].address', default="<none>", wide=True),
    at("OS-Image", ".status.nodeInfo.osImage", default="<unknown>", wide=True),
    at("Container-Runtime", ".status.nodeInfo.containerRuntimeVersion", default="<unknown>", wide=True),
)


def _slice_addresses(item: Object) -> str:
    return _joined(address for endpoint in item.get("endpoints") or () for address in endpoint.get("addresses") or ())


ENDPOINT_SLICES: Final = (
    at("AddressType", ".addressType"),
    of("Ports", lambda item: _joined(port.get("port", "*") for port in item.get("ports") or ())),
    of("Endpoints", _slice_addresses),
    AGE,
)


def _endpoints(item: Object) -> str:
    found: list[str] = []
    for subset in item.get("subsets") or ():
        ports = [port.get("port") for port in subset.get("ports") or ()] or [""]
        for address in subset.get("addresses") or ():
            found += [f"{address.get('ip')}:{port}" if port else str(address.get("ip")) for port in ports]
    return _joined(found)


ENDPOINTS: Final = (of("Endpoints", _endpoints), AGE)
LEASES: Final = (at("Holder", ".spec.holderIdentity"), AGE)


def _role_reference(item: Object) -> str:
    reference = item.get("roleRef") or {}
    return f"{reference.get('kind', '')}/{reference.get('name', '')}"


def _subjects(kind: str) -> Callable[[Object], str]:
    def read(item: Object) -> str:
        chosen = [subject for subject in item.get("subjects") or () if subject.get("kind") == kind]
        names = [f"{s['namespace']}/{s.get('name')}" if s.get("namespace") else str(s.get("name")) for s in chosen]
        return ", ".join(names)

    return read


ROLES: Final = (at("Created At", ".metadata.creationTimestamp"),)
ROLE_BINDINGS: Final = (
    of("Role", _role_reference),
    AGE,
    of("Users", _subjects("User"), wide=True),
    of("Groups", _subjects("Group"), wide=True),
    of("ServiceAccounts", _subjects("ServiceAccount"), wide=True),
)
DISRUPTION_BUDGETS: Final = (
    at("Min Available", ".spec.minAvailable", default="N/A"),
    at("Max Unavailable", ".spec.maxUnavailable", default="N/A"),
    at("Allowed Disruptions", ".status.disruptionsAllowed", default=0, type="integer"),
    AGE,
)
NETWORK_POLICIES: Final = (
    of("Pod-Selector", lambda item: _labels(jsonpath.first(".spec.podSelector.matchLabels", item))),
    AGE,
)
DEFINITIONS: Final = (at("Created At", ".metadata.creationTimestamp"),)


def printer_column(column: Mapping[str, Any]) -> Column:
    """A CRD's additionalPrinterColumns entry. A date is shown as an age, an absent value as an empty cell.

    Raises ValueError for a path that is not understood.
    """
    path, type_name = str(column["jsonPath"]), str(column["type"])
    jsonpath.compiled(path)

    def cell(item: Object, now: datetime.datetime) -> Any:
        value = jsonpath.first(path, item)
        return None if value is None else _printed(value, type_name)

    dated = age_of(path)
    return Column(
        column["name"],
        dated if type_name == "date" else cell,
        type=type_name,
        format=column.get("format", ""),
        priority=column.get("priority", 0),
        description=column.get("description", ""),
    )


def _printed(value: Any, type_name: str) -> Any:
    match type_name:
        case "integer" | "number":
            return value if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case _:
            return jsonpath.text_of(value) if not isinstance(value, dict | list) else value
