"""krt replay of a real Run: it folds to the phases that a watch saw, and a flipped byte is refused with its offset."""

import json
from contextlib import aclosing
from pathlib import Path

import pytest

from controlplane.kube.resources import RUNS
from statemachine.journal import Damaged, decode
from tests.e2e.embedded import Embedded
from tests.e2e.stack import COUNTER, Stack, changes, function, krt, names, until

NAME = names()


async def test_a_runs_journal_folds_to_exactly_the_phases_and_status_seen(stack: Stack) -> None:
    name = next(NAME)
    seen: list[str] = []
    async with stack.client() as client:
        listed = await client.list(RUNS, client.namespace)
        made = await client.create(RUNS, client.namespace, function(name, COUNTER))
        async with aclosing(changes(client, listed.resource_version)) as runs:
            async for run in runs:
                if run.metadata.name != name:
                    continue
                if not seen or seen[-1] != run.status.phase:
                    seen.append(run.status.phase)
                if run.status.phase == "Ready":
                    last = run
                    break
    assert seen == ["Pending", "Scheduled", "Registering", "Ready"]
    until("the journal has it", lambda: "Ready" in stack.krt("replay", name, "-o", "name").out)
    done = stack.krt("replay", name, "-o", "json")
    assert done.code == 0, done.err
    folded = done.json
    phases = [moment["run"].get("status", {}).get("phase", "Pending") for moment in folded["moments"]]
    assert list(dict.fromkeys(phases)) == seen
    status = folded["runs"][made.metadata.uid]["status"]
    assert status["pod_uid"] == last.status.assigned_pod_uid
    assert status["endpoint_url"] == last.status.endpoint.url
    assert status["attempt"] == last.status.attempt
    assert folded["divergence"] is None
    assert stack.krt("diagram", name).out.rstrip().endswith("path: Pending → Scheduled → Registering → Ready")
    assert stack.krt("delete", name).code == 0


@pytest.mark.embedded("the journal's files are on this machine")
def test_a_flipped_byte_is_refused_with_its_offset_and_the_file_is_untouched(stack: Stack, tmp_path: Path) -> None:
    assert isinstance(stack, Embedded)
    name = next(NAME)
    assert stack.krt("run", "-f", "-", "--wait", stdin=json.dumps(function(name, COUNTER))).code == 0
    segment = sorted((stack.directory / "journal" / "controlplane").glob("*.krj"))[0].read_bytes()
    assert krt("replay", str(stack.directory / "journal" / "controlplane")).code == 0
    offsets = [entry.offset for entry in decode(segment)]
    for offset in (offsets[0], offsets[len(offsets) // 2], offsets[-1]):
        damaged = bytearray(segment)
        damaged[offset + 20] ^= 0x40
        path = tmp_path / "damaged.krj"
        path.write_bytes(damaged)
        done = krt("replay", str(path))
        assert done.code == 1
        assert f"offset {offset}" in done.err
        assert path.read_bytes() == bytes(damaged)
        try:
            list(decode(bytes(damaged)))
        except Damaged as damage:
            assert damage.offset == offset
    assert stack.krt("delete", name).code == 0
