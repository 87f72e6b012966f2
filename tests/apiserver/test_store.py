"""The store alone: revisions, snapshots of the past, compaction, disks that take no write."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.embedded.apiserver.errors import ApiError
from controlplane.embedded.apiserver.records import Change, Key, Record, Write
from controlplane.embedded.apiserver.sqlitefile import checkpoint
from controlplane.embedded.apiserver.store import Store

RESOURCE = "example.com/things"


def key(name: str, namespace: str = "n") -> Key:
    return Key(RESOURCE, namespace, name)


def write(store: Store, change: Change, name: str, value: bytes = b"{}", owners: tuple[str, ...] = ()) -> Record:
    return store.commit(Write(key(name), change, f"uid-{name}", value, owners))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def test_revisions_grow_by_one_and_survive(path: Path) -> None:
    store = Store(path)
    first = write(store, Change.ADDED, "a", b"1")
    second = write(store, Change.MODIFIED, "a", b"2")
    assert (second.revision, second.previous) == (first.revision + 1, first.revision)
    write(store, Change.DELETED, "a", b"3")
    newest = store.revision
    store.close()
    store = Store(path)
    assert store.revision == newest
    assert store.get(key("a")) is None
    assert [record.value for record in store.history(RESOURCE, first.revision - 1)] == [b"1", b"2", b"3"]
    store.close()


def test_revisions_do_not_come_again_after_everything_is_compacted(path: Path) -> None:
    store = Store(path)
    write(store, Change.ADDED, "a")
    write(store, Change.DELETED, "a")
    newest = store.revision
    store.compact(newest)
    store.close()
    store = Store(path)
    assert store.revision == newest
    assert store.compacted == newest
    store.close()


def test_a_commit_is_told_after_it_is_stored(path: Path) -> None:
    store = Store(path)
    told: list[tuple[int, bool]] = []
    store.on_commit = lambda record: told.append((record.revision, store.get(record.key) is not None))
    record = write(store, Change.ADDED, "a")
    assert told == [(record.revision, True)]
    store.close()


STEPS = st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=30)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(STEPS, st.integers(0, 30), st.integers(1, 3))
def test_a_page_at_an_earlier_revision_is_what_was_there(
    tmp_path: Path, steps: list[tuple[str, bool]], at: int, limit: int
) -> None:
    path = tmp_path / "state.db"
    path.unlink(missing_ok=True)
    store = Store(path)
    there: dict[str, bytes] = {}
    snapshots = {store.revision: dict(there)}
    for number, (name, deletes) in enumerate(steps):
        value = str(number).encode()
        if name in there and deletes:
            write(store, Change.DELETED, name, value)
            del there[name]
        else:
            write(store, Change.MODIFIED if name in there else Change.ADDED, name, value)
            there[name] = value
        snapshots[store.revision] = dict(there)
    revision = min(max(snapshots), min(snapshots) + at)
    found: dict[str, bytes] = {}
    place = ("", "")
    while True:
        page = store.page_at(RESOURCE, None, after=place, limit=limit, revision=revision)
        found |= {row.key.name: row.value for row in page}
        if len(page) < limit:
            break
        place = (page[-1].key.namespace, page[-1].key.name)
    assert found == snapshots[revision]
    store.close()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(STEPS, st.integers(0, 30))
def test_compaction_keeps_what_is_newest_and_what_came_after(
    tmp_path: Path, steps: list[tuple[str, bool]], at: int
) -> None:
    path = tmp_path / "state.db"
    path.unlink(missing_ok=True)
    store = Store(path)
    there: dict[str, bytes] = {}
    for number, (name, deletes) in enumerate(steps):
        value = str(number).encode()
        if name in there and deletes:
            write(store, Change.DELETED, name, value)
            del there[name]
        else:
            write(store, Change.MODIFIED if name in there else Change.ADDED, name, value)
            there[name] = value
    upto = min(store.revision, 1 + at)
    after = [(record.revision, record.value, record.previous) for record in store.history(RESOURCE, upto)]
    store.compact(upto)
    assert [(record.revision, record.value, record.previous) for record in store.history(RESOURCE, upto)] == after
    assert all(store.value_at(previous) is not None for _, _, previous in after if previous)
    rows = store.page(RESOURCE, None, after=("", ""), limit=100)
    assert {row.key.name: row.value for row in rows} == there
    with sqlite3.connect(path) as db:
        (rows_left,) = db.execute("SELECT count(*) FROM log WHERE revision <= ?", (upto,)).fetchone()
        (needed,) = db.execute(
            "SELECT count(*) FROM log WHERE revision <= ?1 AND (revision IN (SELECT revision FROM current)"
            " OR revision IN (SELECT previous FROM log WHERE revision > ?1))",
            (upto,),
        ).fetchone()
    db.close()
    assert rows_left == needed
    kept = store.history_bytes
    store.close()
    store = Store(path)
    assert store.history_bytes == kept
    store.close()


def test_owners_are_found_and_forgotten(path: Path) -> None:
    store = Store(path)
    write(store, Change.ADDED, "a", owners=("one", "two"))
    assert store.dependents("one") == [key("a")]
    assert set(store.absent_owners()) == {"one", "two"}
    write(store, Change.MODIFIED, "a", owners=("two",))
    assert store.dependents("one") == []
    write(store, Change.DELETED, "a")
    assert store.dependents("two") == []
    store.close()


def test_a_full_disk_is_507_and_writing_goes_on_when_there_is_room(path: Path) -> None:
    store = Store(path)
    write(store, Change.ADDED, "a")
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count={pages + 2}")
    before = store.revision
    with pytest.raises(ApiError) as refused:
        write(store, Change.ADDED, "b", b"x" * 100_000)
    assert (refused.value.code, refused.value.details["retryAfterSeconds"]) == (507, 1)
    assert store.revision == before
    assert store.get(key("a")) is not None
    store._db.execute("PRAGMA max_page_count=1000000")
    assert write(store, Change.ADDED, "b", b"x" * 100_000).revision == before + 1
    store.close()


def test_a_locked_or_read_only_file_is_507_too(path: Path) -> None:
    store = Store(path)
    write(store, Change.ADDED, "a")
    store._db.execute("PRAGMA query_only=ON")
    with pytest.raises(ApiError) as refused:
        write(store, Change.ADDED, "b")
    assert refused.value.code == 507
    store._db.execute("PRAGMA query_only=OFF")
    write(store, Change.ADDED, "b")
    store.close()


def test_a_checkpoint_runs_beside_the_writer(path: Path) -> None:
    store = Store(path)
    write(store, Change.ADDED, "a", b"x" * 100_000)
    before = path.stat().st_size
    checkpoint(path)
    assert path.stat().st_size > before
    write(store, Change.ADDED, "b")
    store.close()


def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    store = Store(path)
    store._db.execute("PRAGMA user_version=99")
    store.close()
    with pytest.raises(ValueError, match="newer version"):
        Store(path)
