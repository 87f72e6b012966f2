"""What the API shows of this Runtime, for routing: Runs and Pods of the namespace folded into the projection.

Here: objects into facts, and who waits for one. The daemon's own writes come in the same way as watch lines, so that
this Pod's registrations are known here before anyone else sees them (O2). Next: `daemon.py` feeds, `serving.py` asks.
"""

import asyncio

from controlplane.kube.types import Pod
from statemachine.ownership import PodFact, Projection, RunFact
from statemachine.run import PodUID, Run, RunUID


class RuntimeFacts:
    """The projection of one Runtime in one namespace."""

    def __init__(self, namespace: str, runtime: str, port: int) -> None:
        self.projection = Projection()
        self._namespace = namespace
        self._runtime = runtime
        self._port = port
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def run_seen(self, run: Run) -> None:
        """Adopt a Run as the API shows it."""
        status = run.status
        fact = RunFact(
            uid=run.uid,
            namespace=run.namespace,
            runtime=run.spec.runtime,
            name=run.name,
            phase=status.phase,
            attempt=status.attempt,
            pod_name=status.pod_name,
            pod_uid=status.pod_uid,
            mode=run.spec.mode,
        )
        self.projection.run_seen(fact)
        self._known(run.uid)

    def run_gone(self, uid: RunUID) -> None:
        """The object is gone."""
        self.projection.run_gone(uid)
        self._known(uid)

    def pod_seen(self, pod: Pod) -> None:
        """Adopt a Pod's address. A terminating Pod is still dialled: its calls finish there, and it passes calls on."""
        uid = PodUID(pod.metadata.uid)
        if not pod.status.pod_ip or pod.status.phase in ("Succeeded", "Failed"):
            self.projection.pod_gone(uid)
            return
        self.projection.pod_seen(
            PodFact(
                uid=uid,
                namespace=self._namespace,
                runtime=self._runtime,
                address=pod.status.pod_ip,
                port=self._port,
                ready=pod.ready,
            )
        )

    def pod_gone(self, uid: str) -> PodFact | None:
        """The Pod is gone; what was known of it."""
        known = self.projection.pod(PodUID(uid))
        self.projection.pod_gone(PodUID(uid))
        return known

    async def fact_of(self, uid: str, *, timeout: float) -> bool:
        """Wait for the next fact about a UID; False when none came within `timeout` seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(uid, [])
        waiting.append(future)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return False
        finally:
            if future in waiting:
                waiting.remove(future)
            if not waiting and self._waiting.get(uid) is waiting:
                del self._waiting[uid]
        return True

    def _known(self, uid: str) -> None:
        for future in self._waiting.pop(uid, ()):
            if not future.done():
                future.set_result(None)
