"""The durable truth: one SQLite file with one revision log, which is also the watch history.

Lives here: revisions, queries, snapshots of the past. May not live here: what an object means, SQLite's own matters
(`sqlitefile.py`). `objects.py` writes and reads through it; `hub.py` is told of every commit.

Every write is a row of `log` with the next revision; `current` points at the newest row of each object. What a row
superseded stays until it is compacted, so a list can go on at an old revision and a watch can start from one. A commit
returns after the write-ahead log has the pages in the kernel: a killed process loses nothing that was answered.
All calls are made on one thread; a call never spans an await.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from controlplane.embedded.apiserver import errors, limits
from controlplane.embedded.apiserver.records import Change, Key, Record, Row, Write
from controlplane.embedded.apiserver.sqlitefile import SCHEMA, SCHEMA_VERSION, locked, translated

_ROW_OVERHEAD_BYTES: Final = 16 * 1024
"""What one commit adds to the write-ahead log beyond its value: about four pages of 4 KiB."""


class Store:
    """Objects by key and the log of their changes. One writer, one thread."""

    def __init__(self, path: Path) -> None:
        """Raises BlockingIOError where another process has the file, ValueError or sqlite3.Error where it is none."""
        self._path = path
        self._lock = locked(path)
        self._db = sqlite3.connect(path, isolation_level=None, cached_statements=256)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("PRAGMA wal_autocheckpoint=0")
        self._db.execute(f"PRAGMA journal_size_limit={limits.WRITE_AHEAD_MAX_BYTES}")
        self._db.execute(f"PRAGMA cache_size=-{limits.SQLITE_CACHE_KIB}")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            self._db.close()
            self._lock.close()
            raise ValueError(f"{path} was written by a newer version (file format {version}, known {SCHEMA_VERSION})")
        self._db.executescript(SCHEMA)
        if version != SCHEMA_VERSION:
            self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        self.on_commit: Callable[[Record], None] = lambda record: None
        self.compacted = self._fact("compacted")
        (newest,) = self._db.execute("SELECT coalesce(max(revision), 0) FROM log").fetchone()
        self.revision: int = max(newest, self._fact("revision"), 1)
        (size,) = self._db.execute(
            "SELECT coalesce(sum(length(value)), 0) FROM log WHERE revision NOT IN (SELECT revision FROM current)"
        ).fetchone()
        self.history_bytes: int = size
        self.unchecked_bytes = 0

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()
        self._lock.close()

    @property
    def path(self) -> Path:
        return self._path

    @property
    def next_revision(self) -> int:
        """The revision that the next write gets; stable until then, since nothing else writes in between."""
        return self.revision + 1

    def get(self, key: Key) -> Row | None:
        found = self._db.execute(
            "SELECT l.revision, l.value FROM current c JOIN log l ON l.revision = c.revision"
            " WHERE c.resource = ? AND c.namespace = ? AND c.name = ?",
            (key.resource, key.namespace, key.name),
        ).fetchone()
        return Row(key, found[0], found[1]) if found else None

    def find_uid(self, uid: str) -> Key | None:
        found = self._db.execute("SELECT resource, namespace, name FROM current WHERE uid = ?", (uid,)).fetchone()
        return Key(*found) if found else None

    def dependents(self, owner: str) -> list[Key]:
        rows = self._db.execute("SELECT resource, namespace, name FROM owners WHERE owner = ?", (owner,))
        return [Key(*row) for row in rows]

    def absent_owners(self) -> list[str]:
        """UIDs that some object names as its owner and that no object has."""
        rows = self._db.execute(
            "SELECT DISTINCT owner FROM owners o WHERE NOT EXISTS (SELECT 1 FROM current c WHERE c.uid = o.owner)"
        )
        return [row[0] for row in rows]

    def namespace_contents(self, namespace: str) -> list[Key]:
        rows = self._db.execute("SELECT resource, namespace, name FROM current WHERE namespace = ?", (namespace,))
        return [Key(*row) for row in rows]

    def deleting(self) -> list[Key]:
        """Objects that have a deletionTimestamp: what a restarted server goes on with."""
        rows = self._db.execute("SELECT resource, namespace, name FROM current WHERE deleting")
        return [Key(*row) for row in rows]

    def oldest(self, resource: str, limit: int) -> list[Row]:
        """The rows of a resource that were not written for longest."""
        rows = self._db.execute(
            "SELECT c.namespace, c.name, l.revision, l.value FROM current c JOIN log l ON l.revision = c.revision"
            " WHERE c.resource = ? ORDER BY c.revision LIMIT ?",
            (resource, limit),
        )
        return [Row(Key(resource, row[0], row[1]), row[2], row[3]) for row in rows]

    def count(self, resource: str, namespace: str | None = None) -> int:
        return self.count_after(resource, namespace, ("", ""))

    def count_after(self, resource: str, namespace: str | None, place: tuple[str, str]) -> int:
        """How many objects stand behind `(namespace, name)` now."""
        scope, values = ("", ()) if namespace is None else (" AND namespace = ?", (namespace,))
        count: int = self._db.execute(
            f"SELECT count(*) FROM current WHERE resource = ?{scope} AND (namespace, name) > (?, ?)",
            (resource, *values, *place),
        ).fetchone()[0]
        return count

    def page(self, resource: str, namespace: str | None, *, after: tuple[str, str], limit: int) -> list[Row]:
        """The newest rows of a resource behind `(namespace, name)`, in that order."""
        scope, values = ("", ()) if namespace is None else (" AND c.namespace = ?", (namespace,))
        rows = self._db.execute(
            "SELECT c.namespace, c.name, l.revision, l.value FROM current c JOIN log l ON l.revision = c.revision"
            f" WHERE c.resource = ?{scope} AND (c.namespace, c.name) > (?, ?) ORDER BY c.namespace, c.name LIMIT ?",
            (resource, *values, *after, limit),
        )
        return [Row(Key(resource, row[0], row[1]), row[2], row[3]) for row in rows]

    def page_at(
        self, resource: str, namespace: str | None, *, after: tuple[str, str], limit: int, revision: int
    ) -> list[Row]:
        """The same as of an earlier revision, which must not be compacted (`errors.gone`)."""
        if revision == self.revision:
            return self.page(resource, namespace, after=after, limit=limit)
        if revision < self.compacted:
            raise errors.gone("The provided continue parameter is too old: list again without it")
        before: dict[tuple[str, str], int] = {}
        scope, values = ("", ()) if namespace is None else (" AND namespace = ?", (namespace,))
        changed = self._db.execute(
            f"SELECT namespace, name, previous FROM log WHERE revision > ? AND resource = ?{scope} ORDER BY revision",
            (revision, resource, *values),
        )
        for row in changed:
            before.setdefault((row[0], row[1]), row[2])
        rows: list[Row] = []
        start = after
        while len(rows) < limit:
            newest = self.page(resource, namespace, after=start, limit=limit)
            end = (newest[-1].key.namespace, newest[-1].key.name) if len(newest) == limit else None
            merged = [row for row in newest if (row.key.namespace, row.key.name) not in before]
            for place, earlier in before.items():
                if earlier and place > start and (end is None or place <= end):
                    value = self.value_at(earlier)
                    if value is not None:
                        merged.append(Row(Key(resource, *place), earlier, value))
            merged.sort(key=lambda row: (row.key.namespace, row.key.name))
            rows.extend(merged)
            if end is None:
                break
            start = end
        return rows[:limit]

    def value_at(self, revision: int) -> bytes | None:
        found = self._db.execute("SELECT value FROM log WHERE revision = ?", (revision,)).fetchone()
        return found[0] if found else None

    def history(self, resource: str, after: int) -> Iterator[Record]:
        """The changes of a resource after a revision, oldest first. Check `compacted` before."""
        rows = self._db.execute(
            "SELECT namespace, name, revision, change, previous, value FROM log"
            " WHERE revision > ? AND resource = ? ORDER BY revision",
            (after, resource),
        )
        for row in rows:
            yield Record(Key(resource, row[0], row[1]), row[2], Change(row[3]), row[4], row[5])

    def commit(self, write: Write) -> Record:
        """Append one change, all or nothing, and tell `on_commit`. Raises 507 when the disk takes no write."""
        return self.commit_all([write])[0]

    def commit_all(self, writes: Sequence[Write]) -> list[Record]:
        """Several changes in one transaction, with consecutive revisions."""
        records: list[Record] = []
        revision = self.revision
        with self._transaction():
            for write in writes:
                revision += 1
                records.append(self._append(revision, write))
        self.revision = revision
        for record in records:
            self.unchecked_bytes += len(record.value) + _ROW_OVERHEAD_BYTES
            self.on_commit(record)
        return records

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of the block or nothing of it, whatever it raises."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise translated(error) from error
        finally:
            if self._db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")

    def _append(self, revision: int, write: Write) -> Record:
        key = write.key
        place = (key.resource, key.namespace, key.name)
        previous, size = 0, 0
        if write.change is Change.ADDED:
            self._db.execute(
                "INSERT INTO current VALUES (?, ?, ?, ?, ?, ?)", (*place, write.uid, revision, write.deleting)
            )
            for owner in write.owners:
                self._db.execute("INSERT OR IGNORE INTO owners VALUES (?, ?, ?, ?)", (owner, *place))
        else:
            previous, size = self._db.execute(
                "SELECT l.revision, length(l.value) FROM current c JOIN log l ON l.revision = c.revision"
                " WHERE c.resource = ? AND c.namespace = ? AND c.name = ?",
                place,
            ).fetchone()
            self.history_bytes += size
            if write.change is Change.DELETED:
                self.history_bytes += len(write.value)
                self._db.execute("DELETE FROM current WHERE resource = ? AND namespace = ? AND name = ?", place)
                self._db.execute("DELETE FROM owners WHERE resource = ? AND namespace = ? AND name = ?", place)
            else:
                self._db.execute(
                    "UPDATE current SET revision = ?, deleting = ? WHERE resource = ? AND namespace = ? AND name = ?",
                    (revision, write.deleting, *place),
                )
                self._reown(place, write.owners)
        self._db.execute(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", (revision, *place, int(write.change), previous, write.value)
        )
        return Record(key, revision, write.change, previous, write.value)

    def _reown(self, place: tuple[str, str, str], owners: tuple[str, ...]) -> None:
        rows = self._db.execute("SELECT owner FROM owners WHERE resource = ? AND namespace = ? AND name = ?", place)
        known = {row[0] for row in rows}
        for owner in known.difference(owners):
            self._db.execute(
                "DELETE FROM owners WHERE owner = ? AND resource = ? AND namespace = ? AND name = ?", (owner, *place)
            )
        for owner in set(owners).difference(known):
            self._db.execute("INSERT OR IGNORE INTO owners VALUES (?, ?, ?, ?)", (owner, *place))

    def compaction_due(self) -> int | None:
        """The revision up to which history may go now, or None while it is within its bounds."""
        behind = self.revision - self.compacted
        if behind > limits.HISTORY_MAX_REVISIONS + limits.COMPACTION_STEP_REVISIONS:
            return self.compacted + limits.COMPACTION_STEP_REVISIONS
        if self.history_bytes > limits.HISTORY_MAX_BYTES and behind > limits.COMPACTION_STEP_REVISIONS:
            return self.compacted + limits.COMPACTION_STEP_REVISIONS
        return None

    def compact(self, upto: int) -> None:
        """Forget what rows up to a revision superseded, and deletions up to it. Watches from before it get 410."""
        span = (self.compacted, upto)
        superseded = (
            "revision IN (SELECT previous FROM log WHERE revision > ? AND revision <= ?)"
            f" OR (revision > ? AND revision <= ? AND change = {int(Change.DELETED)})"
        )
        with self._transaction():
            (size,) = self._db.execute(
                f"SELECT coalesce(sum(length(value)), 0) FROM log WHERE {superseded}", (*span, *span)
            ).fetchone()
            self._db.execute(f"DELETE FROM log WHERE {superseded}", (*span, *span))
            self._db.execute(
                "INSERT OR REPLACE INTO facts VALUES ('compacted', ?), ('revision', ?)", (upto, self.revision)
            )
        self.compacted = upto
        self.history_bytes -= size

    @property
    def write_ahead_bytes(self) -> int:
        """The size of the write-ahead log's file."""
        try:
            return self._path.with_name(f"{self._path.name}-wal").stat().st_size
        except OSError:
            return 0

    def restart_write_ahead(self) -> None:
        """Copy what a checkpoint of the worker thread left, so that the next commit writes the file from its start."""
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(RESTART)")

    def _fact(self, name: str) -> int:
        found = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return found[0] if found else 0
