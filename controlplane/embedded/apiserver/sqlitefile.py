"""The SQLite file below the store: its tables, its lock, its checkpoints, its errors in our words.

Lives here: what depends on SQLite and on nothing that is stored. May not live here: queries (`store.py`).
"""

import contextlib
import fcntl
import sqlite3
from pathlib import Path
from typing import BinaryIO, Final

from controlplane.embedded.apiserver import errors

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS log (
  revision INTEGER PRIMARY KEY,
  resource TEXT NOT NULL,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  change INTEGER NOT NULL,
  previous INTEGER NOT NULL,
  value BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS current (
  resource TEXT NOT NULL,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  uid TEXT NOT NULL,
  revision INTEGER NOT NULL,
  deleting INTEGER NOT NULL,
  PRIMARY KEY (resource, namespace, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS current_deleting ON current (deleting) WHERE deleting;
CREATE INDEX IF NOT EXISTS current_uid ON current (uid);
CREATE INDEX IF NOT EXISTS current_namespace ON current (namespace);
CREATE TABLE IF NOT EXISTS owners (
  owner TEXT NOT NULL,
  resource TEXT NOT NULL,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  PRIMARY KEY (owner, resource, namespace, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS owners_dependent ON owners (resource, namespace, name);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""

SCHEMA_VERSION: Final = 1
"""`PRAGMA user_version` of the file: a newer one is refused, so that an old program never damages a new file."""


def checkpoint(path: Path) -> None:
    """Copy the write-ahead log into the file, on a connection of its own: runs in a worker thread, blocks no writer."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")


def locked(path: Path) -> BinaryIO:
    """Hold the file for this process alone, until it is closed or the process ends. Raises BlockingIOError."""
    file = path.with_name(f"{path.name}-lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise BlockingIOError(f"{path} is in use by another process") from error
    return file


def translated(error: sqlite3.Error) -> errors.ApiError:
    """Disk full, read-only, I/O errors and a lock held by a foreign process may pass: 507. Anything else is our bug."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    passing = {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
    }
    if code in passing:
        return errors.storage_full(str(error))
    return errors.internal(f"storage: {error}")
