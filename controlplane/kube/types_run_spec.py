"""`spec` of a Run: what to run, where and how, with the bounds and rules that the API enforces.

Only shapes live here, see `types_kruntimes`. What joins two fields is a `Rule` on the struct that holds both, with the
path of the leaf that is wrong. What never changes is ruled on `spec`: a rule on an optional field is not evaluated when
that field appears or vanishes.
"""

from typing import Annotated, ClassVar, Final

import msgspec

from controlplane.kube.crd_fields import REASON_MAX_BYTES, SEGMENT, Quantities, RuntimeName, duration, path, quantities
from controlplane.kube.crd_meta import Rule, ascii_text, field, keyed, text, whole
from controlplane.kube.meta import ApiStruct

SOURCE_INLINE_MAX_BYTES: Final = 128 * 1024  # an object must fit etcd's 1.5 MiB with env, args and outputs
GIT_URL_MAX_BYTES: Final = 2048
GIT_REF_MAX_BYTES: Final = 256
HANDLER_MAX_BYTES: Final = 512
TASK_ARGS_MAX: Final = 256
TASK_ARGS_SUM_MAX_BYTES: Final = 128 * 1024
ENV_MAX: Final = 256
ENV_NAME_MAX_BYTES: Final = 256
ENV_VALUE_MAX_BYTES: Final = 32 * 1024
ENV_VALUES_SUM_MAX_BYTES: Final = 128 * 1024
CONCURRENCY_MAX: Final = 64
ATTEMPTS_MAX: Final = 100
RETRYABLE_REASONS_MAX: Final = 32


class GitSourceObject(ApiStruct, frozen=True, kw_only=True):
    """A commit of a git repository."""

    url: Annotated[
        str,
        text(
            "Where to fetch from: https, ssh or file.",
            Rule(r"self.matches('^(https|ssh|file)://[^\\x00-\\x20]+$')", "must be an https://, ssh:// or file:// URL"),
            max_bytes=GIT_URL_MAX_BYTES,
        ),
    ]
    ref: Annotated[
        str | None,
        text(
            "Branch, tag or commit. Without it, the HEAD of the remote.",
            Rule(
                r"self.matches('^[^-\\x00-\\x20][^\\x00-\\x20]*$')",
                "must be a branch, tag or commit: not empty, without spaces, not beginning with a dash",
            ),
            max_bytes=GIT_REF_MAX_BYTES,
        ),
    ] = None


class SourceObject(ApiStruct, frozen=True, kw_only=True):
    """Where the code comes from: written into the Run, or from git."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.inline) || !has(self.git)",
            "inline and git exclude each other",
            ".git",
            "FieldValueForbidden",
        ),
    )
    inline: Annotated[str | None, text("The code itself.", max_bytes=SOURCE_INLINE_MAX_BYTES)] = None
    inline_path: Annotated[
        str | None,
        path(
            "The file that a function's inline code is written to, such as main.py.",
            f"^{SEGMENT}(/{SEGMENT})*$",
            "must be a relative path without empty, . or .. segments",
        ),
    ] = None
    git: Annotated[
        GitSourceObject | None, field("A git repository; one commit of it is checked out for every attempt.")
    ] = None


# An API server refuses a rule that may cost too much, and the bytes of 256 arguments of any length do. So the first 168
# count in bytes and those behind them in characters; where even four bytes a character fit, nothing is counted closely.
_ARGS_SUM: Final = (
    f"self.map(arg, size(arg)).sum() <= {TASK_ARGS_SUM_MAX_BYTES // 4} || "
    "[0,1,2,3,4,5,6,7,8,9,10,11].map(i, [0,1,2,3,4,5,6,7,8,9,10,11,12,13].map(j, "
    "i * 14 + j < size(self) ? size(bytes(self[i * 14 + j])) - size(self[i * 14 + j]) : 0).sum()).sum() + "
    f"self.map(arg, size(arg)).sum() <= {TASK_ARGS_SUM_MAX_BYTES}"
)


class TaskModeObject(ApiStruct, frozen=True, kw_only=True):
    """Run a script once."""

    entrypoint: Annotated[
        str | None,
        path(
            "The file to run, relative to the source. Without it, the Runtime's default, such as main.py or main.sh.",
            f"^(\\\\./)?{SEGMENT}(/{SEGMENT})*$",
            "must be a relative path without empty or .. segments",
        ),
    ] = None
    args: Annotated[
        tuple[
            Annotated[
                str,
                field(
                    "One argument.",
                    pattern=r"^[^\x00]*$",
                    maxLength=TASK_ARGS_SUM_MAX_BYTES,
                ),
            ],
            ...,
        ],
        field(
            "Arguments of the script.",
            Rule(
                _ARGS_SUM,
                f"all arguments together must be at most {TASK_ARGS_SUM_MAX_BYTES} bytes of UTF-8",
            ),
            maxItems=TASK_ARGS_MAX,
        ),
    ] = ()


class FunctionModeObject(ApiStruct, frozen=True, kw_only=True):
    """Register a handler and keep it callable."""

    handler: Annotated[
        str,
        text(
            "file.function: the last dot splits, dots before it are folders.",
            Rule(
                r"self.matches('^[^./\\x00-\\x20]+(\\.[^./\\x00-\\x20]+)+$')",
                "must be file.function, such as main.invoke: names joined by dots, without slashes or spaces",
            ),
            max_bytes=HANDLER_MAX_BYTES,
        ),
    ]
    idle_timeout_seconds: Annotated[
        int | None, whole("Release the Run after this long without an invocation. Without it: never.", minimum=1)
    ] = None
    concurrency: Annotated[
        int, whole("Invocations in flight at once; a worker process each.", minimum=1, maximum=CONCURRENCY_MAX)
    ] = 1


class ModeObject(ApiStruct, frozen=True, kw_only=True):
    """How the code is run: exactly one of task and function."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.task) != has(self.__function__)", "exactly one of task and function must be set"),
    )
    task: Annotated[TaskModeObject | None, field("Run once and end.")] = None
    function: Annotated[FunctionModeObject | None, field("Stay callable until released.")] = None


class RunEnvVar(ApiStruct, frozen=True, kw_only=True):
    """One environment variable of the user's code."""

    name: Annotated[
        str,
        ascii_text(
            "Letters, digits, _, - and dots; no digit first.",
            max_bytes=ENV_NAME_MAX_BYTES,
            pattern="^[-._a-zA-Z][-._a-zA-Z0-9]*$",
        ),
    ]
    value: Annotated[
        str,
        text(
            "Not for secrets: whoever may read Runs reads it.",
            Rule(r"!self.contains('\x00')", "must not hold a NUL character"),
            max_bytes=ENV_VALUE_MAX_BYTES,
        ),
    ] = ""


class RunResourcesObject(ApiStruct, frozen=True, kw_only=True):
    """What the Run takes of its Pod's capacity."""

    requests: Annotated[Quantities, quantities("Of resources that the Runtime declares.")] = msgspec.field(
        default_factory=lambda: {"runs": 1}
    )


class RetryPolicyObject(ApiStruct, frozen=True, kw_only=True):
    """When a failed registration or task is tried again."""

    max_attempts: Annotated[int, whole("Tries in all; 1 is no retry.", minimum=1, maximum=ATTEMPTS_MAX)] = 1
    backoff: Annotated[str, duration("Wait before the second try; doubled for each further one, up to 60s.")] = "1s"
    retryable_reasons: Annotated[
        tuple[Annotated[str, text("A value of status.reason.", max_bytes=REASON_MAX_BYTES, minLength=1)], ...],
        field(
            "Reasons that are tried again. Without them: all but SourceInvalid, HandlerNotFound and OutputsInvalid.",
            maxItems=RETRYABLE_REASONS_MAX,
        ),
    ] = ()


def _never_changes(name: str, advice: str) -> Rule:
    """A transition rule for `spec`, so that it fires too when the field appears or vanishes."""
    return Rule(
        f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
        f"{name} never changes after creation: {advice}",
        f".{name}",
    )


_NEW_RUN: Final = "make a new Run, or replace this one with krt run --replace"


class RunSpecObject(ApiStruct, frozen=True, kw_only=True):
    """What to run, where and how."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.mode) || !has(self.mode.__function__) || "
            "(has(self.source) && (has(self.source.inline) || has(self.source.git)))",
            "function mode needs a source: inline or git",
            ".source",
            "FieldValueRequired",
        ),
        Rule(
            "!has(self.mode) || !has(self.mode.__function__) || !has(self.source) || !has(self.source.inline) || "
            "has(self.source.inlinePath)",
            "inline source in function mode needs the path of its file, such as main.py",
            ".source.inlinePath",
            "FieldValueRequired",
        ),
        Rule(
            "!has(self.source) || !has(self.source.inlinePath) || "
            "(has(self.source.inline) && has(self.mode) && has(self.mode.__function__))",
            "inlinePath is only for inline source in function mode",
            ".source.inlinePath",
            "FieldValueForbidden",
        ),
        _never_changes("runtime", _NEW_RUN),
        _never_changes("source", f"a new source is a new Run: {_NEW_RUN}"),
        _never_changes("mode", _NEW_RUN),
        _never_changes("env", _NEW_RUN),
        _never_changes("timeout", _NEW_RUN),
        _never_changes("retryPolicy", _NEW_RUN),
        _never_changes("resources", _NEW_RUN),
        Rule(
            "!has(oldSelf.cancelRequested) || !oldSelf.cancelRequested || "
            "(has(self.cancelRequested) && self.cancelRequested)",
            "a cancellation cannot be taken back",
            ".cancelRequested",
        ),
    )
    runtime: RuntimeName
    source: Annotated[SourceObject | None, field("The code. Function mode needs it.")] = None
    mode: Annotated[ModeObject, field("Exactly one of task and function.")] = ModeObject(task=TaskModeObject())
    env: Annotated[
        tuple[RunEnvVar, ...],
        keyed(
            "Environment variables of the user's code, which may replace any other.",
            "name",
            max_items=ENV_MAX,
            rules=(
                Rule(
                    "self.map(variable, has(variable.value) ? size(bytes(variable.value)) : 0).sum() <= "
                    f"{ENV_VALUES_SUM_MAX_BYTES}",
                    f"all values together must be at most {ENV_VALUES_SUM_MAX_BYTES} bytes of UTF-8",
                ),
            ),
        ),
    ] = ()
    resources: Annotated[RunResourcesObject, field("Capacity that the Run takes.")] = RunResourcesObject()
    timeout: Annotated[str | None, duration("Lifetime of one attempt, from its start.")] = None
    cancel_requested: Annotated[bool, field("Ask for the end of the Run; it cannot be taken back.")] = False
    retry_policy: Annotated[RetryPolicyObject, field("When a failure is tried again.")] = RetryPolicyObject()
    ttl_seconds_after_finished: Annotated[
        int | None, whole("Delete the Run this long after it finished. Without it: keep it.", minimum=0)
    ] = None
