"""The Pod's port as a whole: who may connect, and which of its two sides answers.

Gateways and peers of the same Runtime invoke (`serving`); the control plane of this installation reads logs and
journals (`controlplane.kube.records`), and invokes nothing. The certificate tells who is who. `main` listens with it.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from controlplane.kube.records import METHODS, RecordFiles
from dataplane.wire.identity import ControlPlaneIdentity, GatewayIdentity, Identity, RuntimedIdentity
from runtimes.contract import messages as m
from runtimes.contract.mux import CallError, Reply, Request


class Invocations(Protocol):
    """What answers calls; `serving.Serving` does."""

    def handle(self, request: Request) -> Awaitable[Reply | None] | None:
        """One request of a gateway or a peer."""
        ...


def admission(namespace: str, runtime: str) -> Callable[[Identity], bool]:
    """Who may connect: gateways and the control plane of this installation, and runtimeds of this very Runtime."""

    def admit(identity: Identity) -> bool:
        match identity:
            case GatewayIdentity() | ControlPlaneIdentity():
                return True
            case RuntimedIdentity():
                return (identity.namespace, identity.runtime) == (namespace, runtime)

    return admit


class Port:
    """Hands each request to the side that its peer may use."""

    def __init__(self, invocations: Invocations, records: RecordFiles) -> None:
        self._invocations = invocations
        self._records = records

    def handle(self, request: Request) -> Awaitable[Reply | None] | None:
        """One request of the port."""
        if not isinstance(request.peer, ControlPlaneIdentity):
            return self._invocations.handle(request)
        if request.method not in METHODS:
            message = f"the control plane reads records here, {request.method} is not for it"
            raise CallError(m.ErrorHead(reason=m.UNKNOWN_METHOD, message=message))
        return self._records.handle(request)
