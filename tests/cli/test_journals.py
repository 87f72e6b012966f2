"""`krt replay`, `krt diagram` and `krt explain`."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from statemachine.events import Bound, Observed, Role
from statemachine.journal import MAGIC, Record, decode, encode
from statemachine.run import Phase, PodUID, RunUID
from statemachine.step import step
from tests.apiserver.harness import run as a_run
from tests.cli.stage import Krt, Kubernetes
from tests.statemachine.samples import run_in

SECOND_US = 1_000_000


def records(uid: str, name: str, first_seq: int = 1) -> list[Record]:
    """A Run that is seen, bound, and seen as Scheduled, as the control plane would have written it."""
    run = run_in(Phase.PENDING, uid=RunUID(uid), name=name)
    bound = Bound(at_us=2 * SECOND_US, pod_name="p", pod_uid=PodUID("u"))
    seen = Observed(at_us=SECOND_US, run=run)
    scheduled = step(step(None, seen, Role.CONTROL_PLANE).run, bound, Role.CONTROL_PLANE).run
    written, before = [], None
    for number, event in enumerate((seen, bound, Observed(at_us=3 * SECOND_US, run=scheduled))):
        done = step(before, event, Role.CONTROL_PLANE)
        record = Record(
            seq=first_seq + number,
            writer="controlplane",
            role=Role.CONTROL_PLANE,
            rules=1,
            run_uid=RunUID(uid),
            event=event,
            commands=done.commands,
            refusal=done.refusal,
            gap=done.gap,
            fresh=number == 0,
        )
        written.append(record)
        before = done.run if isinstance(event, Observed) else before
    return written


def segment(*parts: list[Record]) -> bytes:
    return MAGIC + b"".join(encode(record) for part in parts for record in part)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A folder of one writer with two segments and two Runs."""
    folder = tmp_path / "journal" / "controlplane"
    folder.mkdir(parents=True)
    (folder / "0000000000000001.krj").write_bytes(segment(records("uid-a", "a")))
    (folder / "0000000000000004.krj").write_bytes(segment(records("uid-b", "b", 4)))
    return folder


def test_a_journal_folds_to_the_same_commands_and_is_left_as_it_was(krt: Krt, journal: Path) -> None:
    before = {path: path.read_bytes() for path in journal.iterdir()}
    for what in (journal, journal.parent, journal.parent.parent):  # the writer's folder, all writers, a data directory
        done = krt("replay", str(what))
        assert (done.code, done.err) == (0, "6 records of 2 Runs fold to the same commands\n"), done
        assert done.out.splitlines()[0].split()[:2] == ["RUN", "SEQ"]
    assert {path: path.read_bytes() for path in journal.iterdir()} == before


def test_one_run_of_it_can_be_folded_alone(krt: Krt, journal: Path) -> None:
    for which in ("uid-b", "b"):
        done = krt("replay", str(journal), "--run", which)
        assert done.out.splitlines()[0].split()[0] == "SEQ"
        assert done.err == "3 records of 1 Run fold to the same commands\n"
        assert krt("replay", str(journal), "--run", which, "-o", "name").out == "Pending\nPending\nScheduled\n"
    krt("replay", str(journal), "--run", "nobody").failed(3, "NotFound")
    assert krt("diagram", str(journal), "--run", "a").out.rstrip().endswith("path: Pending → Scheduled")


def test_a_part_and_a_what_if_can_be_folded(krt: Krt, journal: Path) -> None:
    assert krt("replay", str(journal), "--to", "2", "-o", "name").out == "Pending\nPending\n"
    done = krt("replay", str(journal), "--without", "2", "--without", "3")
    assert "left out: 2, 3" in done.err
    assert done.err.splitlines()[-1] == "4 records of 2 Runs fold"


def test_the_fold_is_an_object_too(krt: Krt, journal: Path) -> None:
    one = krt("replay", str(journal), "-o", "json").json
    assert set(one["runs"]) == {"uid-a", "uid-b"}
    assert one["divergence"] is None
    shutil.copytree(journal, journal.parent / "runtimed-x")
    several = krt("replay", str(journal.parent), "-o", "json").json["journals"]
    assert [journal["writer"] for journal in several] == ["controlplane", "runtimed-x"]


def test_a_changed_decision_is_a_divergence_with_its_place(krt: Krt, tmp_path: Path) -> None:
    seen, bound, scheduled = records("uid-a", "a")
    wrong = msgspec.structs.replace(bound, commands=())
    path = tmp_path / "copy.krj"
    path.write_bytes(segment([seen, wrong, scheduled]))
    offset = [entry.offset for entry in decode(path.read_bytes())][1]
    message = krt("replay", str(path)).failed(1, "Diverged")
    assert f"{path}: record 1 at offset {offset} (seq 2): commands differ" in message
    assert krt("replay", str(path), "-o", "json").json["divergence"]["offset"] == offset


def test_damage_is_refused_with_segment_record_and_offset(krt: Krt, journal: Path) -> None:
    path = sorted(journal.iterdir())[0]
    whole = path.read_bytes()
    offsets = [entry.offset for entry in decode(whole)]
    for number, offset in enumerate(offsets):
        damaged = bytearray(whole)
        damaged[offset + 20] ^= 1
        path.write_bytes(damaged)
        message = krt("replay", str(journal)).failed(1, "JournalDamaged")
        assert message.startswith(f"{path}: ")
        assert f"offset {offset}, record {number}" in message
    path.write_bytes(whole[:-3])  # only the last segment may be torn
    assert "only the last record of the last segment" in krt("replay", str(journal)).failed(1, "JournalDamaged")
    path.write_bytes(b"no journal at all")
    krt("replay", str(journal)).failed(1, "JournalDamaged")


def test_a_torn_tail_is_left_out_with_a_note(krt: Krt, journal: Path) -> None:
    path = sorted(journal.iterdir())[-1]
    whole = path.read_bytes()
    last = [entry.offset for entry in decode(whole)][-1]
    for torn in (whole[:-3], whole[: last + 5], whole[: last + 20] + bytes(64)):
        path.write_bytes(torn)
        done = krt("replay", str(journal))
        assert done.code == 0, done
        assert f"the last record, at offset {last}, is torn and was left out" in done.err


def test_missing_records_and_newer_rules_are_told(krt: Krt, tmp_path: Path) -> None:
    path = tmp_path / "copy.krj"
    path.write_bytes(segment(records("uid-a", "a"), records("uid-b", "b", 10)))
    assert "6 records are missing" in krt("replay", str(path)).err
    newer = [msgspec.structs.replace(record, rules=99) for record in records("uid-a", "a")]
    path.write_bytes(segment(newer))
    message = krt("replay", str(path)).failed(1, "RulesUnknown")
    assert f"{path}: record 0 at offset 4 was decided by rule version 99" in message


def test_what_is_no_journal_is_told(krt: Krt, tmp_path: Path) -> None:
    krt("replay", str(tmp_path)).failed(3, "NotFound")
    krt("replay", str(tmp_path / "absent.krj")).failed(3, "NotFound")
    (tmp_path / "text").write_text("hello")
    krt("replay", str(tmp_path / "text")).failed(1, "JournalDamaged")


@pytest.fixture
def recorded(kubernetes: Kubernetes) -> Iterator[str]:
    """A Run whose journal the API has, among those of others."""
    made = kubernetes.put(a_run("a"))
    folder = kubernetes.directory / "journal" / "controlplane"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "0000000000000001.krj"
    path.write_bytes(segment(records("other", "x"), records(made["metadata"]["uid"], "a", 4)))
    yield "a"
    path.unlink()


def test_a_runs_journal_comes_through_the_api(
    krt: Krt, kubernetes: Kubernetes, recorded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / recorded).write_text("a file of that name is no journal")
    for name in (recorded, f"run/{recorded}"):
        done = krt("replay", name)
        assert (done.code, done.err) == (0, "3 records of 1 Run fold to the same commands\n"), done
    assert krt("diagram", recorded).out.rstrip().endswith("path: Pending → Scheduled")
    assert "class Scheduled visited" in krt("diagram", recorded, "--mermaid").out
    krt("replay", "nobody").failed(3, "NotFound")
    kubernetes.put(a_run("quiet"))
    assert "no journal here" in krt("replay", "quiet").failed(3, "NotFound")


def test_a_journal_that_begins_with_the_successor_of_a_control_plane_says_so(krt: Krt, kubernetes: Kubernetes) -> None:
    uid = kubernetes.put(a_run("taken-over"))["metadata"]["uid"]
    folder = kubernetes.directory / "journal" / "controlplane"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "0000000000000001.krj"
    last = msgspec.structs.replace(records(uid, "taken-over")[-1], seq=1, commands=(), fresh=True)
    done = step(None, last.event, Role.CONTROL_PLANE)
    path.write_bytes(segment([msgspec.structs.replace(last, commands=done.commands, gap=done.gap)]))
    note = "note: this journal begins with the Run in Scheduled, attempt 1; what was before went with an earlier"
    assert note in krt("replay", "taken-over").err
    path.unlink()


def test_the_diagram_draws_every_phase(krt: Krt) -> None:
    text = krt("diagram").out
    assert all(phase in text for phase in Phase if phase is not Phase.GONE)
    assert krt("diagram", "--mermaid").out.startswith("stateDiagram-v2")


def explained(krt: Krt, kubernetes: Kubernetes, status: dict[str, Any]) -> str:
    kubernetes.put(a_run("it"), status)
    done = krt("explain", "it")
    assert (done.code, done.err) == (0, ""), done
    return done.out


def test_explain_says_what_a_waiting_run_waits_for(krt: Krt, kubernetes: Kubernetes) -> None:
    waiting = {"type": "Scheduled", "status": "False", "reason": "NoCapacity", "message": "2 of 2 slots are used"}
    waiting["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    text = explained(krt, kubernetes, {"conditions": [waiting]})
    assert text.startswith("Run it is Pending\n")
    assert "Scheduled=False  NoCapacity 2 of 2 slots are used" in text
    assert "It waits for a Pod of Runtime python that is ready and has room." in text
    assert "CancelRequested" in text


def test_explain_shows_a_traceback_in_lines(krt: Krt, kubernetes: Kubernetes) -> None:
    text = explained(
        krt, kubernetes, {"phase": "Failed", "reason": "ImportFailed", "message": "boom\n  File x\x1b\nend\n"}
    )
    assert text.startswith("Run it is Failed (ImportFailed: boom\n      File x\\x1b\n    end)\n")


def test_explain_of_an_ended_run_says_why_and_shows_its_events(krt: Krt, kubernetes: Kubernetes) -> None:
    made = kubernetes.put(a_run("it"), {"phase": "Failed", "reason": "ImportFailed", "message": "\x1b[31mboom"})
    reference = {"kind": "Run", "name": "it", "namespace": "default", "uid": made["metadata"]["uid"]}
    event = {"metadata": {"name": "it.1"}, "involvedObject": reference, "type": "Warning", "reason": "ImportFailed"}
    seen = made["metadata"]["creationTimestamp"]
    event |= {"message": "boom", "lastTimestamp": seen}
    kubernetes.post("/api/v1/namespaces/default/events", event)
    done = krt("explain", "it")
    assert done.out.startswith("Run it is Failed (ImportFailed: \\x1b[31mboom)\n")
    assert "The source raised an exception while it was loaded." in done.out
    assert f"{seen}   Warning   ImportFailed   boom" in done.out
    assert "What may happen next" in done.out  # it may be deleted
    facts = krt("explain", "it", "-o", "json").json
    assert (facts["phase"], facts["reason"], facts["events"][0]["message"]) == ("Failed", "ImportFailed", "boom")
    assert krt("explain", "it", "-o", "name").out == "run.kruntimes.io/it\n"
    krt("explain", "nobody").failed(3, "NotFound")


def test_a_token_of_an_account_is_one_for_api_and_gateway(krt: Krt, kubernetes: Kubernetes, tmp_path: Path) -> None:
    done = krt("token", "--serviceaccount", "default", "--duration", "10m")
    assert (done.code, len(done.out.splitlines()), done.err) == (0, 1, "")
    path = kubernetes.kubeconfig(tmp_path / "account", user={"token": done.out.strip()})
    assert "system:serviceaccount:default:default" in krt("list", "--kubeconfig", str(path)).failed(4, "Forbidden")
    narrow = krt("token", "--serviceaccount", "default", "--audience", "kruntimes").out.strip()
    path = kubernetes.kubeconfig(tmp_path / "narrow", user={"token": narrow})
    krt("list", "--kubeconfig", str(path)).failed(4, "Unauthorized")
    krt("token", "--serviceaccount", "nobody").failed(3, "NotFound")
    krt("token", "--serviceaccount", "default", "--duration", "soon").failed(2, "InvalidOption")
    certificate = kubernetes.kubeconfig(tmp_path / "none", user={})
    krt("token", "--kubeconfig", str(certificate)).failed(1, "NoToken")


def test_versions_of_client_and_server_are_told(krt: Krt, kubernetes: Kubernetes, tmp_path: Path) -> None:
    lines = dict(line.split(": ") for line in krt("version").out.splitlines())
    assert set(lines) == {"client", "rules", "server"}
    assert json.loads(krt("version", "-o", "json").out) == lines
    away = str(kubernetes.kubeconfig(tmp_path / "away", server="https://127.0.0.1:1"))
    done = krt("version", "--kubeconfig", away)
    assert (done.code, "no server answers: CannotConnect" in done.err) == (0, True)
    done = krt("version", "--kubeconfig", away, "-o", "json")
    assert (done.code, done.status["reason"]) == (9, "CannotConnect")
