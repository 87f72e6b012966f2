"""A lean Run decides exactly as the whole one and holds nothing of what is run."""

import msgspec

from controlplane.kube.translate import run_from_object
from controlplane.kube.types import RunObject
from controlplane.lean import LEAN_RUNS, LeanRun
from tests.kit.builders import assigned, function_run, task_run

SPEC = {
    "env": [{"name": "SECRET", "value": "s3cret"}],
    "timeout": "1h",
    "ttlSecondsAfterFinished": 5,
    "cancelRequested": True,
    "resources": {"requests": {"gpu": 1, "runs": 2}},
    "retryPolicy": {"maxAttempts": 3, "backoff": "2s", "retryableReasons": ["TaskLost"]},
}
METADATA = {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "diagnosis"}, "finalizers": ["a"]}


def lean(obj: RunObject) -> LeanRun:
    decoded = msgspec.json.decode(msgspec.json.encode(obj), type=LEAN_RUNS.type)
    assert isinstance(decoded, LeanRun)
    return decoded


def test_it_translates_to_the_same_run():
    for obj in (
        function_run(spec=SPEC, status=assigned("Ready"), metadata=METADATA),
        task_run(spec=SPEC, status=assigned("Running"), metadata=METADATA),
    ):
        assert run_from_object(lean(obj)) == run_from_object(obj)


def test_it_holds_neither_source_nor_environment_nor_annotations():
    text = repr(lean(function_run(spec=SPEC, metadata=METADATA)))
    for secret in ("s3cret", "diagnosis complete", "last-applied"):
        assert secret not in text


def test_what_other_fields_need_is_kept():
    obj = lean(function_run(spec=SPEC, metadata=METADATA))
    assert obj.metadata.finalizers == ("a",)
    assert obj.metadata.uid == "uid-diagnose-service"
