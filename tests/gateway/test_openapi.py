"""The description of the interface says what the code does: every reason, every limit, the same paths."""

import re

from dataplane.gateway.openapi import INVOKE_PATH, document
from dataplane.gateway.request import invoke_target, new_invocation_id
from statemachine.reasons import Reason


def test_every_reason_of_an_answer_stands_under_its_status() -> None:
    responses = document()["paths"][INVOKE_PATH]["post"]["responses"]
    for reason in Reason:
        status = reason.info.http_status
        if status and status not in (417, 501, 505):  # no client of a description can provoke these
            assert f"- {reason.value}: " in responses[str(status)]["description"], reason


def test_the_described_path_is_the_one_that_is_served() -> None:
    patterns = {one["name"]: one["schema"]["pattern"] for one in document()["paths"][INVOKE_PATH]["parameters"]}
    good = {"namespace": "default", "runtime": "python", "uid": "2c24c1f0-9f8f-4f80-82d5-3dd16a12d1e6"}
    target = invoke_target(INVOKE_PATH.format(**good))
    assert target is not None
    assert (target.namespace, target.runtime, target.run_uid) == tuple(good.values())
    for name, bad in (("namespace", "-a"), ("runtime", "a" * 41), ("uid", "a/b")):
        assert re.search(patterns[name], bad) is None
        assert invoke_target(INVOKE_PATH.format(**good | {name: bad})) is None


def test_ids_that_we_make_are_never_the_same() -> None:
    ids = {new_invocation_id() for _ in range(10_000)}
    assert len(ids) == 10_000
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)
