"""Which cluster and namespace a command is for, and the connection to it.

With --kubeconfig, --context or KUBECONFIG this is as in kubectl; with none of them a running `krt up` is found by
itself, and only then `~/.kube/config`.
"""

import fcntl
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

from controlplane.cli.failure import NOT_ALLOWED, USAGE, Failure
from controlplane.cli.lifetime import at_end
from controlplane.kube.kubeconfig import Access, ConfigError, load_access

if TYPE_CHECKING:
    from controlplane.cli.plain import PlainApi
    from controlplane.kube.client import KubeClient

T = TypeVar("T")

LAST_TURNS: Final = 3  # of the loop: the transports of connections that were just closed end in them


def data_directory() -> Path:
    """Where `krt up` keeps its data unless it is told otherwise."""
    named = os.environ.get("KRUNTIMES_DATA_DIR")
    return Path(named).expanduser() if named else Path.home() / ".kruntimes"


def running(directory: Path) -> bool:
    """Whether a `krt up` holds this directory. As `embedded.datadir.is_locked`, which costs 20 ms to import."""
    try:
        lock = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


def quiet() -> None:
    """What a library logs would stand between our lines; its errors are told as ours."""
    logging.getLogger().addHandler(logging.NullHandler())


class Session:
    """The cluster, namespace and credential of one command. Nothing is read before it is asked for."""

    def __init__(self, namespace: str | None, context: str | None, kubeconfig: str | None) -> None:
        if namespace is not None and (not namespace or not namespace.isascii() or set(namespace) & set("/.%?# ")):
            raise Failure("InvalidName", f"{namespace!r} is no name of a namespace", USAGE)
        self._namespace = namespace
        self._context = context
        self._kubeconfig = kubeconfig
        self._access: Access | None = None

    @property
    def kubeconfig(self) -> str | None:
        """The path that was asked for, or that of a running `krt up`; None: as kubectl finds it."""
        if self._kubeconfig is None and not self._context and not os.environ.get("KUBECONFIG"):
            found = data_directory() / "kubeconfig"
            if found.is_file() and running(found.parent):
                self._kubeconfig = str(found)
        return self._kubeconfig

    def access(self) -> Access:
        """Server and credential, as the kubeconfig says."""
        if self._access is None:
            try:
                found = load_access(self.kubeconfig, context=self._context, environ=os.environ)
                urlsplit(found.server).port  # noqa: B018 - a ValueError for what is no port
                self._access = found
            except ConfigError as error:
                named = self.kubeconfig or self._context or os.environ.get("KUBECONFIG")
                hint = "" if named else "; start a system with krt up, or name a kubeconfig with --kubeconfig"
                raise Failure("ConfigInvalid", f"{error}{hint}") from error
            except (AttributeError, TypeError, ValueError) as error:  # YAML, but of another form than a kubeconfig's
                where = self.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
                raise Failure("ConfigInvalid", f"{where} is no kubeconfig: {error}") from error
        return self._access

    @property
    def namespace(self) -> str:
        """The namespace of the command."""
        return self._namespace or self.access().namespace or "default"

    @property
    def explicit_namespace(self) -> str | None:
        """The namespace that -n names."""
        return self._namespace

    @asynccontextmanager
    async def connect(self) -> "AsyncIterator[KubeClient]":
        """A client, closed at the end."""
        import asyncio

        from controlplane.kube.client import KubeClient

        access = self.access()  # a missing file is told in our words
        quiet()
        try:
            client = await KubeClient.connect(self.kubeconfig, context=self._context, user_agent="krt")
        except ConfigError as error:
            if access.plugin is None:
                raise
            raise Failure("Unauthenticated", str(error), NOT_ALLOWED) from error
        try:
            async with client:
                yield client
        finally:
            for _ in range(LAST_TURNS):
                await asyncio.sleep(0)

    @cached_property
    def api(self) -> "PlainApi":
        """The Kubernetes API for a command that asks and is done."""
        from controlplane.cli.plain import PlainApi

        api = PlainApi(self.access())
        at_end(api.close)
        return api

    def call(self, work: "Callable[[KubeClient], Awaitable[T]]") -> T:
        """Connect, do `work` and disconnect."""
        import asyncio

        async def run() -> T:
            async with self.connect() as client:
                return await work(client)

        return asyncio.run(run())
