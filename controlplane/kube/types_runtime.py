"""Runtime: a pool of Pods that stand ready for Runs, with the bounds and rules that the API enforces.

Only shapes live here, see `types_kruntimes`. The Pod template stays a dict: it is handed on to a Deployment as written.
"""

from typing import Annotated, Any, ClassVar, Final

import msgspec

from controlplane.kube.crd_fields import CONDITIONS_MAX, NAME_MAX_BYTES, RESOURCES_MAX, Quantities, quantities
from controlplane.kube.crd_meta import Rule, field, keyed, large, text, whole
from controlplane.kube.meta import ApiStruct
from controlplane.kube.types_run_status import ConditionObject

CONTAINERS_MAX: Final = 32  # of one Runtime Pod
IMAGE_MAX_BYTES: Final = 1024
BUCKET_MAX_BYTES: Final = 255
HOST_MAX_BYTES: Final = 260  # a DNS name and a port
GIT_CREDENTIALS_MAX: Final = 16
STORE_TEXT_MAX_BYTES: Final = 2048  # prefixes, endpoints, paths
TEMPLATE_TEXTS_MAX: Final = 128  # labels, and annotations, of one template
LABEL_VALUE_MAX_BYTES: Final = 63  # Kubernetes' own
ANNOTATION_MAX_BYTES: Final = 256 * 1024  # Kubernetes' own, of all annotations together
SELECTOR_MAX_BYTES: Final = 1024
RUNS_SUMMARY_MAX_BYTES: Final = 64

Count = Annotated[int, large("How many.")]


def _texts(doc: str, max_bytes: int) -> dict[str, Any]:
    value = {"type": "string", "description": "A value.", "maxLength": max_bytes}
    return {
        "type": "object",
        "description": doc,
        "maxProperties": TEMPLATE_TEXTS_MAX,
        "additionalProperties": value,
    }


_CONTAINERS: Final[dict[str, Any]] = {
    "type": "array",
    "description": "The first is the Runtime Server; its name is runtime.",
    "minItems": 1,
    "maxItems": CONTAINERS_MAX,
    "items": {
        "type": "object",
        "description": "A container, as in a Pod.",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "description": "Its name.", "minLength": 1, "maxLength": 63},
            "image": {"type": "string", "description": "Its image.", "maxLength": IMAGE_MAX_BYTES},
        },
        "x-kubernetes-preserve-unknown-fields": True,
    },
    "x-kubernetes-validations": [
        Rule("size(self) == 0 || self[0].name == 'runtime'", "the first container must be named runtime").schema()
    ],
}
_POD_TEMPLATE: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "metadata": {
            "type": "object",
            "description": "Labels and annotations of the Pods.",
            "properties": {
                "labels": _texts("Labels of the Pods, beside those of the Runtime.", LABEL_VALUE_MAX_BYTES),
                "annotations": _texts("Annotations of the Pods.", ANNOTATION_MAX_BYTES),
            },
            "x-kubernetes-preserve-unknown-fields": True,
        },
        "spec": {
            "type": "object",
            "description": "Spec of the Pods, as in a Deployment. A sidecar with runtimed is added to it.",
            "required": ["containers"],
            "properties": {"containers": _CONTAINERS},
            "x-kubernetes-preserve-unknown-fields": True,
        },
    },
}


class CapacityObject(ApiStruct, frozen=True, kw_only=True):
    """What one Pod of the Runtime offers to Runs."""

    resources: Annotated[Quantities, quantities("Countable things that Runs request, per Pod.")] = msgspec.field(
        default_factory=lambda: {"runs": 2}
    )


class FilesystemStoreObject(ApiStruct, frozen=True, kw_only=True):
    """Artifacts in a folder."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.volumeClaimName) != has(self.path)", "exactly one of volumeClaimName and path must be set"),
    )
    volume_claim_name: Annotated[
        str | None, text("A PersistentVolumeClaim.", max_bytes=NAME_MAX_BYTES, minLength=1)
    ] = None
    path: Annotated[
        str | None,
        text(
            "An absolute path on the node.",
            Rule("self.startsWith('/')", "must be an absolute path"),
            max_bytes=STORE_TEXT_MAX_BYTES,
        ),
    ] = None


class S3StoreObject(ApiStruct, frozen=True, kw_only=True):
    """Artifacts in a bucket."""

    bucket: Annotated[str, text("Name of the bucket.", max_bytes=BUCKET_MAX_BYTES, minLength=1)]
    prefix: Annotated[str | None, text("Before every key.", max_bytes=STORE_TEXT_MAX_BYTES)] = None
    region: Annotated[str | None, text("Region of the bucket.", max_bytes=BUCKET_MAX_BYTES)] = None
    endpoint: Annotated[str | None, text("URL of a server other than AWS.", max_bytes=STORE_TEXT_MAX_BYTES)] = None
    credentials_secret_name: Annotated[
        str | None,
        text("Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.", max_bytes=NAME_MAX_BYTES, minLength=1),
    ] = None


class ArtifactStoreObject(ApiStruct, frozen=True, kw_only=True):
    """Where tasks leave their artifacts: exactly one kind of store."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.filesystem) != has(self.s3)", "exactly one of filesystem and s3 must be set"),
    )
    filesystem: Annotated[FilesystemStoreObject | None, field("A folder.")] = None
    s3: Annotated[S3StoreObject | None, field("A bucket.")] = None


class GitCredentialObject(ApiStruct, frozen=True, kw_only=True):
    """What one git server is shown; no other server ever gets it."""

    host: Annotated[
        str,
        text(
            "Host, with a port where it is not the scheme's own.",
            Rule("!self.contains('/') && !self.contains(',')", "must be a host, or host:port"),
            max_bytes=HOST_MAX_BYTES,
            minLength=1,
        ),
    ]
    secret_name: Annotated[
        str,
        text(
            "Secret with username and password (https), ssh-privatekey and known_hosts (ssh), ca.crt.",
            max_bytes=NAME_MAX_BYTES,
            minLength=1,
        ),
    ]


class GitObject(ApiStruct, frozen=True, kw_only=True):
    """How sources are fetched from git."""

    credentials: Annotated[
        tuple[GitCredentialObject, ...],
        keyed("Credentials by host.", "host", max_items=GIT_CREDENTIALS_MAX),
    ] = ()


class RuntimeSpecObject(ApiStruct, frozen=True, kw_only=True):
    """The Pods, how many of them, and what each offers."""

    template: Annotated[
        dict[str, Any], field("Template of the Pods; its first container is named runtime.", **_POD_TEMPLATE)
    ]
    replicas: Annotated[int, whole("How many Pods; 0 is allowed.", minimum=0)] = 1
    capacity: Annotated[CapacityObject, field("What one Pod offers to Runs.")] = CapacityObject()
    daemon_image: Annotated[
        str | None, text("Image of runtimed, in place of the installation's.", max_bytes=IMAGE_MAX_BYTES, minLength=1)
    ] = None
    artifact_store: Annotated[ArtifactStoreObject | None, field("Where tasks leave their artifacts.")] = None
    git: Annotated[GitObject | None, field("How sources are fetched from git.")] = None


class CapacityStatusObject(ApiStruct, frozen=True, kw_only=True):
    """Capacity of all Pods together; written at most once a second."""

    total: Annotated[dict[str, Count], field("What all ready Pods offer.", maxProperties=RESOURCES_MAX)] = (
        msgspec.field(default_factory=dict)
    )
    used: Annotated[dict[str, Count], field("What Runs hold of it.", maxProperties=RESOURCES_MAX)] = msgspec.field(
        default_factory=dict
    )
    runs: Annotated[str, text("used/total of the resource runs, for people.", max_bytes=RUNS_SUMMARY_MAX_BYTES)] = ""


class RuntimeStatusObject(ApiStruct, frozen=True, kw_only=True):
    """Written by kruntimes only."""

    replicas: Annotated[int, whole("Pods that exist.", minimum=0)] = 0
    ready_replicas: Annotated[int, whole("Pods that are Ready.", minimum=0)] = 0
    selector: Annotated[str, text("Label selector of the Pods, for autoscalers.", max_bytes=SELECTOR_MAX_BYTES)] = ""
    conditions: Annotated[tuple[ConditionObject, ...], keyed("Available.", "type", max_items=CONDITIONS_MAX)] = ()
    capacity: Annotated[CapacityStatusObject | None, field("Capacity of all Pods together.")] = None
