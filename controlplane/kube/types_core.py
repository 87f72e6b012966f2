"""Small core kinds: ConfigMap, Secret, Service, EndpointSlice, Event, and any object's metadata.

`types.py` re-exports all of it.
"""

import msgspec

from controlplane.kube.meta import ApiStruct, ObjectMeta


class ObjectReference(ApiStruct, frozen=True, kw_only=True):
    """The object that an Event is about, or the target of an endpoint."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class PlainObject(ApiStruct, frozen=True, kw_only=True):
    """Any object, as far as its metadata goes: Namespaces, ServiceAccounts, and kinds we only name."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


class ConfigMap(ApiStruct, frozen=True, kw_only=True):
    """core/v1 ConfigMap."""

    api_version: str = "v1"
    kind: str = "ConfigMap"
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = msgspec.field(default_factory=dict)
    binary_data: dict[str, str] = msgspec.field(default_factory=dict)


class Secret(ApiStruct, frozen=True, kw_only=True):
    """core/v1 Secret; `data` is base64. Its repr shows no value."""

    api_version: str = "v1"
    kind: str = "Secret"
    metadata: ObjectMeta = ObjectMeta()
    type: str = "Opaque"
    data: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Secret(name={self.metadata.name!r}, keys={sorted(self.data)!r})"


class ServicePort(ApiStruct, frozen=True, kw_only=True):
    """One port of a Service."""

    port: int
    name: str = ""
    protocol: str = "TCP"
    target_port: int | str | None = None
    app_protocol: str | None = None
    node_port: int | None = None


class ServiceSpec(ApiStruct, frozen=True, kw_only=True):
    """What a Service selects and on which ports."""

    selector: dict[str, str] = msgspec.field(default_factory=dict)
    ports: tuple[ServicePort, ...] = ()
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    type: str = "ClusterIP"
    publish_not_ready_addresses: bool = False


class Service(ApiStruct, frozen=True, kw_only=True):
    """core/v1 Service."""

    api_version: str = "v1"
    kind: str = "Service"
    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()


class EndpointConditions(ApiStruct, frozen=True, kw_only=True):
    """None means unknown: read `ready` as True then, `serving` as `ready`, `terminating` as False."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Endpoint(ApiStruct, frozen=True, kw_only=True):
    """One Pod behind a Service."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    target_ref: ObjectReference | None = None
    node_name: str | None = None
    zone: str | None = None

    @property
    def ready(self) -> bool:
        """May get new work."""
        return self.conditions.ready is not False

    @property
    def serving(self) -> bool:
        """Still answers, perhaps while terminating."""
        return self.ready if self.conditions.serving is None else self.conditions.serving


class EndpointPort(ApiStruct, frozen=True, kw_only=True):
    """A named port of every endpoint of the slice."""

    name: str = ""
    port: int | None = None
    protocol: str = "TCP"
    app_protocol: str | None = None


class EndpointSlice(ApiStruct, frozen=True, kw_only=True):
    """discovery.k8s.io/v1 EndpointSlice. The API says `null` where there are none: iterate `endpoints or ()`."""

    api_version: str = "discovery.k8s.io/v1"
    kind: str = "EndpointSlice"
    metadata: ObjectMeta = ObjectMeta()
    address_type: str = "IPv4"
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None


class EventSource(ApiStruct, frozen=True, kw_only=True):
    """Which component recorded an Event."""

    component: str = ""
    host: str = ""


class KubeEvent(ApiStruct, frozen=True, kw_only=True):
    """core/v1 Event. `type` is Normal or Warning; `count` grows while the same thing happens again."""

    api_version: str = "v1"
    kind: str = "Event"
    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference = ObjectReference()
    type: str = ""
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    reporting_component: str = ""
    reporting_instance: str = ""
    action: str = ""
    event_time: str | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    count: int = 0


class APIServiceSpec(ApiStruct, frozen=True, kw_only=True):
    """How the API server reaches an aggregated API; what else is in it is the chart's."""

    ca_bundle: str = ""


class APIService(ApiStruct, frozen=True, kw_only=True):
    """apiregistration.k8s.io/v1 APIService."""

    api_version: str = "apiregistration.k8s.io/v1"
    kind: str = "APIService"
    metadata: ObjectMeta = ObjectMeta()
    spec: APIServiceSpec = APIServiceSpec()
