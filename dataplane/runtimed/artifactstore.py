"""The Runtime's artifact store: a folder or an S3 bucket, through obstore. Blocking; `artifacts.py` gives it threads.

Here: keys, uploads with their digest, removal, and every foreign error in our words. Not here: which files, and when.
A key is `<namespace>/<runtime>-<UID of the Runtime>/<UID of the Run>/<attempt>/<folder>/<name>`: nothing of another
installation or Runtime ever shares a prefix with it, so that what a Run left can be removed by its prefix.
"""

import hashlib
import logging
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from msgspec import Struct

from dataplane.runtimed.artifactfiles import ArtifactsRefused, LeftFile
from runtimes.contract.limits import ARTIFACT_MAX_BYTES
from runtimes.contract.messages import ArtifactRef

if TYPE_CHECKING:
    from obstore.store import LocalStore, S3Store

READ_BYTES: Final = 1024 * 1024
ONE_PUT_MAX_BYTES: Final = 8 * 1024 * 1024  # in one request, held in memory; more goes in parts
REQUEST_TIMEOUT: Final = "60s"  # one request of at most a part of 5 MiB
CONNECT_TIMEOUT: Final = "5s"
RETRIES_MAX: Final = 3
RETRY_TIMEOUT: Final = timedelta(seconds=20)
URI_MAX_BYTES: Final = 2048  # status.artifactRefs[].uri
CREDENTIALS: Final = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
}
"""Keys of the Secret, and what obstore calls them."""

_log = logging.getLogger(__name__)


class UploadFailed(Exception):
    """The store did not take a file; it may later. The message names the store and what it said."""


class UploadTimeout(UploadFailed):
    """The files were not stored within the caller's time."""


class StoreConfig(Struct, frozen=True, kw_only=True):
    """`uri`: `s3://bucket[/prefix]`, `file:///path` or `file://claim`; `key`: the Runtime's own part below it."""

    uri: str
    key: str
    folder: Path | None = None
    """Where a `file:` store is mounted."""
    region: str = ""
    endpoint: str = ""
    credentials_dir: Path | None = None
    """Where the Secret with the bucket's credentials is mounted; read again when it changes."""


class Store:
    """Made once; nothing is opened before the first use."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._opened: LocalStore | S3Store | None = None
        self._credentials: dict[str, str] = {}

    def put(self, run_uid: str, place: str, left: LeftFile) -> ArtifactRef:
        """Store one file as `<run UID>/<place>/<name>`. The digest is of the bytes that were stored.

        Raises UploadFailed, ArtifactsRefused.
        """
        from obstore import put
        from obstore.exceptions import BaseError

        path = f"{self._config.key}/{run_uid}/{place}/{left.name}"
        uri = f"{self._config.uri}/{quote(path)}"
        if len(uri.encode()) > URI_MAX_BYTES:
            raise ArtifactsRefused(f"artifact {left.name!r}: its URI has more than {URI_MAX_BYTES} bytes")
        reading = _Reading(left)
        try:
            if left.size <= ONE_PUT_MAX_BYTES:
                put(self._store(), path, b"".join(reading), use_multipart=False)
            else:
                put(self._store(), path, iter(reading))
        except (BaseError, OSError) as error:
            raise UploadFailed(
                f"artifact {left.name!r} was not stored in {self._config.uri}: {_said(error)}"
            ) from error
        return ArtifactRef(name=left.name, uri=uri, size_bytes=reading.size, digest=f"sha256:{reading.digest}")

    def remove(self, run_uid: str) -> None:
        """Remove everything of a Run. Raises UploadFailed when the store says no."""
        from obstore import delete
        from obstore import list as list_objects
        from obstore.exceptions import BaseError

        store = self._store()
        try:
            for batch in list_objects(store, f"{self._config.key}/{run_uid}"):
                try:
                    delete(store, [meta["path"] for meta in batch])
                except FileNotFoundError:
                    continue  # another Pod of the Runtime was faster
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise UploadFailed(f"artifacts of {run_uid} were not removed: {_said(error)}") from error

    def runs(self) -> set[str]:
        """UIDs of the Runs that something is stored of. Raises UploadFailed."""
        from obstore import list_with_delimiter
        from obstore.exceptions import BaseError

        try:
            listed = list_with_delimiter(self._store(), self._config.key)
        except FileNotFoundError:
            return set()
        except (BaseError, OSError) as error:
            raise UploadFailed(f"the artifact store cannot be listed: {_said(error)}") from error
        return {prefix.rstrip("/").rpartition("/")[2] for prefix in listed["common_prefixes"]}

    def _store(self) -> "LocalStore | S3Store":
        """Opened at the first use: obstore's threads must not exist before this process has been forked."""
        from obstore.store import LocalStore, S3Store

        config = self._config
        if config.folder is not None:
            if self._opened is None:
                self._opened = LocalStore(config.folder, automatic_cleanup=True, mkdir=True)
            return self._opened
        credentials = _credentials(config.credentials_dir)
        if self._opened is None or credentials != self._credentials:
            parts = urlsplit(config.uri)
            options = {name: credentials[key] for key, name in CREDENTIALS.items() if credentials.get(key)}
            if config.endpoint:
                options["endpoint"] = config.endpoint
            self._opened = S3Store(
                parts.netloc,
                prefix=parts.path.strip("/") or None,
                region=config.region or "us-east-1",
                client_options={
                    "timeout": REQUEST_TIMEOUT,
                    "connect_timeout": CONNECT_TIMEOUT,
                    "allow_http": config.endpoint.startswith("http://"),
                },
                retry_config={"max_retries": RETRIES_MAX, "retry_timeout": RETRY_TIMEOUT},
                **options,  # type: ignore[arg-type]  # strings, by the names above
            )
            self._credentials = credentials
        return self._opened


class _Reading:
    """Reads a file to its end, hashing; refuses one that grows beyond the bound while it is read."""

    def __init__(self, left: LeftFile) -> None:
        self._left = left
        self._hash = hashlib.sha256()
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        while data := os.pread(self._left.fd, READ_BYTES, self.size):
            self._hash.update(data)
            self.size += len(data)
            if self.size > ARTIFACT_MAX_BYTES:
                raise OSError(f"it grew beyond {ARTIFACT_MAX_BYTES} bytes while it was read")
            yield data

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


def _credentials(folder: Path | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in CREDENTIALS if folder is not None else ():
        assert folder is not None
        try:
            found[key] = (folder / key).read_text(encoding="utf-8").strip()
        except OSError:
            continue  # a session token is optional; without the others the store says what is missing
    return found


def _said(error: BaseException) -> str:
    """The first line: obstore adds pages of debugging to it."""
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__
