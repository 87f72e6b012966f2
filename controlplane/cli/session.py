"""Which cluster and namespace a command is for, and the connection to it.

With --kubeconfig, --context or KUBECONFIG this is as in kubectl; with none of them a running `krt up` is found by
itself, and only then `~/.kube/config`. Commands take the annotated option types from here.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from controlplane.cli.failure import CANNOT_CONNECT, OTHER, Failure
from controlplane.kube.kubeconfig import Access, ConfigError, load_access

if TYPE_CHECKING:
    from controlplane.kube.client import KubeClient

T = TypeVar("T")

NamespaceOption = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace; default: the context's.")]
ContextOption = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig to use.")]
KubeconfigOption = Annotated[str | None, typer.Option("--kubeconfig", help="Path of the kubeconfig to use.")]


def data_directory() -> Path:
    """Where `krt up` keeps its data unless it is told otherwise."""
    return Path(os.environ.get("KRUNTIMES_DATA_DIR") or Path.home() / ".kruntimes")


class Session:
    """The cluster, namespace and credential of one command. Nothing is read before it is asked for."""

    def __init__(self, namespace: str | None, context: str | None, kubeconfig: str | None) -> None:
        self._namespace = namespace
        self._context = context
        self._kubeconfig = kubeconfig or self._running()

    def _running(self) -> str | None:
        """The kubeconfig of a running `krt up`, if nothing else is asked for."""
        if self._context or os.environ.get("KUBECONFIG"):
            return None
        from controlplane.embedded.datadir import is_locked

        directory = data_directory()
        found = directory / "kubeconfig"
        return str(found) if found.is_file() and is_locked(directory) else None

    @property
    def kubeconfig(self) -> str | None:
        """The path that was asked for or found; None: as kubectl finds it."""
        return self._kubeconfig

    def access(self) -> Access:
        """Server and credential, as the kubeconfig says."""
        try:
            return load_access(self._kubeconfig, context=self._context, environ=os.environ)
        except ConfigError as error:
            raise Failure(
                "ConfigInvalid", f"{error}; start one with `krt up`, or name one with --kubeconfig", OTHER
            ) from error

    @property
    def namespace(self) -> str:
        """The namespace of the command."""
        return self._namespace or self.access().namespace or "default"

    @asynccontextmanager
    async def connect(self) -> "AsyncIterator[KubeClient]":
        """A client, closed at the end."""
        from controlplane.kube.client import KubeClient

        self.access()  # a missing file is told in our words
        try:
            client = await KubeClient.connect(self._kubeconfig, context=self._context, user_agent="krt")
        except ConfigError as error:
            raise Failure("ConfigInvalid", str(error), CANNOT_CONNECT) from error
        async with client:
            yield client

    def call(self, work: "Callable[[KubeClient], Awaitable[T]]") -> T:
        """Connect, do `work` and disconnect."""

        async def run() -> T:
            async with self.connect() as client:
                return await work(client)

        return asyncio.run(run())
