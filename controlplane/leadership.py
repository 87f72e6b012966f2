"""Whether this process may decide. Correctness never rests on it (every write is conditional); it saves double work.

`main` waits for `acquired` before it starts the control plane, stops it when `lost` returns, and calls `release` last.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from msgspec.structs import replace

from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.codec import format_time
from controlplane.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from controlplane.kube.resources import LEASES
from controlplane.kube.types import Lease, LeaseSpec, ObjectMeta

LEASE_S: Final = 6  # a leader that was killed is followed after this; one that stopped, at once
RENEW_S: Final = 1.5  # four tries in the life of a lease
LOOK_S: Final = 1.0  # how often one that waits looks: a Run is bound within 3 s of the leader's end
RELEASE_TIMEOUT_S: Final = 2.0

_log = logging.getLogger(__name__)


class Leadership(Protocol):
    """Tells when this process may start, and when it must stop."""

    async def acquired(self) -> None:
        """Return once this process leads."""
        ...

    async def lost(self) -> None:
        """Return once it leads no more."""
        ...

    async def release(self) -> None:
        """Let another lead at once; nothing if this one does not."""
        ...


class Alone:
    """For an installation with one control plane: it leads from the start and for ever."""

    async def acquired(self) -> None:
        return

    async def lost(self) -> None:
        await asyncio.Event().wait()

    async def release(self) -> None:
        return


class LeaseLeadership:
    """Leads by a Lease that it renews. Another's is judged by whether it changes, never by the clock in it."""

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        *,
        namespace: str,
        name: str,
        identity: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._sleep = sleep
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._held: Lease | None = None
        self._seen: tuple[str, float] = ("", 0.0)

    async def acquired(self) -> None:
        while True:
            try:
                if await self._take():
                    _log.info("this control plane leads", extra={"identity": self._identity})
                    return
            except (Conflict, AlreadyExists):
                _log.debug("another control plane was quicker")
            except KubeError as error:
                _log.warning("the lease cannot be looked at: %s", error)
            await self._sleep(LOOK_S)

    async def lost(self) -> None:
        """While the API does not answer this one goes on: whatever it decides is written through the same API."""
        while self._held is not None:
            await self._sleep(RENEW_S)
            try:
                await self._renew(self._held)
            except KubeError as error:
                _log.warning("the lease is not renewed: %s", error)

    async def release(self) -> None:
        lease, self._held = self._held, None
        if lease is None:
            return
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self._write(lease, "")
        except (KubeError, TimeoutError) as error:
            _log.warning("the lease is not released and ends by itself: %s", error)

    async def _renew(self, lease: Lease) -> None:
        """Renew, or find that another leads. Raises KubeError."""
        try:
            await self._write(lease, self._identity)
        except Conflict:  # perhaps with an own write whose answer was lost
            shown = await self._kube.get(LEASES, self._namespace, self._name)
            self._held = shown if shown.spec.holder_identity == self._identity else None

    async def _take(self) -> bool:
        """Take the lease if it is free. Raises KubeError."""
        try:
            lease = await self._kube.get(LEASES, self._namespace, self._name)
        except NotFound:
            metadata = ObjectMeta(name=self._name, namespace=self._namespace)
            self._held = await self._kube.create(LEASES, self._namespace, Lease(metadata=metadata, spec=self._spec(1)))
            return True
        if not self._free(lease):
            return False
        await self._write(lease, self._identity)
        return True

    def _free(self, lease: Lease) -> bool:
        """Whether its holder has let go, is this process, or has not renewed while it was watched."""
        version, since = self._seen
        if lease.metadata.resource_version != version:
            self._seen = lease.metadata.resource_version, self._clock.monotonic()
        elif self._clock.monotonic() - since >= (lease.spec.lease_duration_seconds or LEASE_S):
            return True
        return lease.spec.holder_identity in (None, "", self._identity)

    async def _write(self, lease: Lease, holder: str) -> None:
        """Write the lease for `holder`, on the condition that nobody has since. Raises KubeError."""
        changed = (lease.spec.holder_identity or "") != holder
        spec = (
            self._spec((lease.spec.lease_transitions or 0) + changed)
            if holder
            else LeaseSpec(holder_identity="", lease_duration_seconds=1, lease_transitions=lease.spec.lease_transitions)
        )
        if not changed:
            spec = replace(spec, acquire_time=lease.spec.acquire_time)
        written = await self._kube.update(LEASES, self._namespace, replace(lease, spec=spec))
        if holder:
            self._held = written

    def _spec(self, transitions: int) -> LeaseSpec:
        now = format_time(self._clock.now_us())
        return LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=LEASE_S,
            acquire_time=now,
            renew_time=now,
            lease_transitions=transitions,
        )
