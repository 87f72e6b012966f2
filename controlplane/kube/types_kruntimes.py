"""Run and Runtime: the kinds of `kruntimes.io/v1alpha1`.

The one source of the API: `crd` renders the CustomResourceDefinitions and `kubectl explain` from these types, clients
decode into them. Their parts are in `types_run_spec`, `types_run_status` and `types_runtime`; import them from here.
A default other than None or an empty collection is a default of the API too. Lifecycle is not here: `statemachine`.
"""

from typing import Annotated, ClassVar, Final

from controlplane.kube.crd_fields import NAME_MAX_BYTES, RUNTIME_NAME_MAX_BYTES, RUNTIME_NAME_PATTERN
from controlplane.kube.crd_meta import Rule, field
from controlplane.kube.meta import ApiStruct, ObjectMeta
from controlplane.kube.types_run_spec import (
    FunctionModeObject,
    GitSourceObject,
    ModeObject,
    RetryPolicyObject,
    RunEnvVar,
    RunResourcesObject,
    RunSpecObject,
    SourceObject,
    TaskModeObject,
)
from controlplane.kube.types_run_status import (
    ArtifactRefObject,
    ConditionObject,
    EndpointObject,
    ReleaseObject,
    RunPhase,
    RunStatusObject,
)
from controlplane.kube.types_runtime import (
    ArtifactStoreObject,
    CapacityObject,
    CapacityStatusObject,
    FilesystemStoreObject,
    RuntimeSpecObject,
    RuntimeStatusObject,
    S3StoreObject,
)

GROUP: Final = "kruntimes.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"


class RunObject(ApiStruct, frozen=True, kw_only=True):
    """A Run is one task, or one function that stays callable, on a Pod of a Runtime."""

    api_version: str = API_VERSION
    kind: str = "Run"
    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[RunSpecObject, field("What to run, where and how.")]
    status: Annotated[RunStatusObject, field("Where the Run is in its life. Written by kruntimes only.")] = (
        RunStatusObject()
    )


class RuntimeObject(ApiStruct, frozen=True, kw_only=True):
    """A Runtime is a pool of Pods that stand ready for Runs."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.metadata.name.matches('{RUNTIME_NAME_PATTERN}') && "
            f"size(self.metadata.name) <= {RUNTIME_NAME_MAX_BYTES}",
            f"the name of a Runtime is at most {RUNTIME_NAME_MAX_BYTES} lower-case letters, digits and dashes, "
            "and begins with a letter",
            ".metadata.name",
        ),
    )
    api_version: str = API_VERSION
    kind: str = "Runtime"
    # A rule may point at the name only where the schema shows it.
    metadata: Annotated[ObjectMeta, field("", properties={"name": {"type": "string", "maxLength": NAME_MAX_BYTES}})] = (
        ObjectMeta()
    )
    spec: Annotated[RuntimeSpecObject, field("The Pods, how many of them, and what each offers.")]
    status: Annotated[RuntimeStatusObject, field("What stands ready. Written by kruntimes only.")] = (
        RuntimeStatusObject()
    )


__all__ = [
    "API_VERSION",
    "GROUP",
    "VERSION",
    "ArtifactRefObject",
    "ArtifactStoreObject",
    "CapacityObject",
    "CapacityStatusObject",
    "ConditionObject",
    "EndpointObject",
    "FilesystemStoreObject",
    "FunctionModeObject",
    "GitSourceObject",
    "ModeObject",
    "ReleaseObject",
    "RetryPolicyObject",
    "RunEnvVar",
    "RunObject",
    "RunPhase",
    "RunResourcesObject",
    "RunSpecObject",
    "RunStatusObject",
    "RuntimeObject",
    "RuntimeSpecObject",
    "RuntimeStatusObject",
    "S3StoreObject",
    "SourceObject",
    "TaskModeObject",
]
