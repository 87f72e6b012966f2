"""What the API answers to the patch that takes the last finalizer off a deleting object: its last stored state."""

from msgspec.structs import replace

from controlplane.kube.patches import finalizer_taken
from controlplane.kube.translate import FINALIZER
from tests.kit.builders import function_run


def test_our_finalizer_is_gone_whatever_the_answer_shows_and_others_stay() -> None:
    run = function_run("a")
    answer = replace(run, metadata=replace(run.metadata, finalizers=("x", FINALIZER)))
    shown = finalizer_taken(answer)
    assert shown is not None
    assert shown.metadata.finalizers == ("x",)
    assert type(shown) is type(run)


def test_a_deleting_object_that_only_we_held_is_gone() -> None:
    run = function_run("a")
    metadata = replace(run.metadata, finalizers=(FINALIZER,), deletion_timestamp="2026-01-01T00:00:00Z")
    assert finalizer_taken(replace(run, metadata=metadata)) is None
    assert finalizer_taken(replace(run, metadata=replace(metadata, finalizers=("x", FINALIZER)))) is not None
