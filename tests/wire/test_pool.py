"""The pool: one dial per Pod whatever happens at once, and no connection outlives its use."""

import asyncio

import pytest

from dataplane.wire.errors import ConnectFailed, ConnectRefused, ConnectTimedOut, PeerDraining, PoolClosed
from dataplane.wire.pool import Channel, Peer, Pool
from runtimes.contract.mux import Reply

PEER = Peer("127.0.0.1", 8443, "pod-1", "default", "python")


class FakeChannel:
    def __init__(self) -> None:
        self.usable = True
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.drained = asyncio.Event()

    async def call(self, method: str, head: object, body: bytes | memoryview = b"", *, timeout: float) -> Reply:
        return Reply()

    async def drain(self, *, timeout: float) -> bool:
        self.drained.set()
        self.close()
        return True

    def close(self) -> None:
        self.usable = False
        if not self.closed.done():
            self.closed.set_result(None)


class Dialler:
    def __init__(self) -> None:
        self.dials = 0
        self.may_finish = asyncio.Event()
        self.error: Exception | None = None
        self.channels: list[FakeChannel] = []

    async def __call__(self, peer: Peer) -> Channel:
        self.dials += 1
        await self.may_finish.wait()
        if self.error is not None:
            raise self.error
        self.channels.append(FakeChannel())
        return self.channels[-1]


async def test_callers_at_once_share_one_dial() -> None:
    dialler = Dialler()
    pool = Pool(dialler)
    waiting = [asyncio.create_task(pool.connection(PEER)) for _ in range(10)]
    await asyncio.sleep(0)
    dialler.may_finish.set()
    channels = await asyncio.gather(*waiting)
    assert dialler.dials == 1
    assert len(set(map(id, channels))) == 1
    assert pool.ready(PEER) is channels[0]


async def test_a_caller_that_gives_up_does_not_end_the_dial_for_the_others() -> None:
    dialler = Dialler()
    pool = Pool(dialler)
    first = asyncio.create_task(pool.connection(PEER))
    second = asyncio.create_task(pool.connection(PEER))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    dialler.may_finish.set()
    assert (await second).usable
    assert dialler.dials == 1


async def test_a_slow_dial_is_a_timeout_for_who_waits_and_a_connection_for_who_comes_later() -> None:
    dialler = Dialler()
    pool = Pool(dialler)
    with pytest.raises(ConnectTimedOut):
        await pool.connection(PEER, timeout=0.01)
    dialler.may_finish.set()
    assert await pool.connection(PEER) is pool.ready(PEER)
    assert dialler.dials == 1


async def test_a_failed_dial_is_told_to_all_who_wait_and_remembered_by_nobody() -> None:
    dialler = Dialler()
    dialler.error = ConnectRefused("nobody")
    dialler.may_finish.set()
    pool = Pool(dialler)
    results = await asyncio.gather(*(pool.connection(PEER) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [ConnectRefused] * 3
    assert dialler.dials == 1
    dialler.error = None
    assert (await pool.connection(PEER)).usable


async def test_a_lost_connection_is_replaced_by_the_next_call() -> None:
    dialler = Dialler()
    dialler.may_finish.set()
    pool = Pool(dialler)
    first = await pool.connection(PEER)
    first.close()
    assert pool.ready(PEER) is None
    assert await pool.connection(PEER) is not first
    assert dialler.dials == 2


async def test_a_pod_that_said_goaway_is_draining_until_its_connection_ends() -> None:
    dialler = Dialler()
    dialler.may_finish.set()
    pool = Pool(dialler)
    await pool.connection(PEER)
    dialler.channels[0].usable = False
    assert pool.ready(PEER) is None
    with pytest.raises(PeerDraining):
        await pool.connection(PEER)
    dialler.channels[0].close()
    assert (await pool.connection(PEER)).usable
    assert dialler.dials == 2


async def test_warming_dials_once_and_swallows_a_refusal() -> None:
    dialler = Dialler()
    dialler.error = ConnectRefused("nobody")
    dialler.may_finish.set()
    pool = Pool(dialler)
    pool.warm(PEER)
    pool.warm(PEER)
    with pytest.raises(ConnectRefused):
        await pool.connection(PEER)
    assert dialler.dials == 1
    dialler.error = None
    pool.warm(PEER)
    await pool.connection(PEER)
    pool.warm(PEER)
    assert dialler.dials == 2


async def test_a_retired_pod_is_drained_and_no_longer_used() -> None:
    dialler = Dialler()
    dialler.may_finish.set()
    pool = Pool(dialler)
    await pool.connection(PEER)
    pool.retire(PEER)
    assert pool.ready(PEER) is None
    async with asyncio.timeout(5):
        await dialler.channels[0].drained.wait()


async def test_a_pod_retired_while_it_is_dialled_fails_the_call() -> None:
    dialler = Dialler()
    pool = Pool(dialler)
    waiting = asyncio.create_task(pool.connection(PEER))
    await asyncio.sleep(0)
    pool.retire(PEER)
    with pytest.raises(ConnectFailed):
        await waiting


async def test_a_closed_pool_refuses_and_leaves_nothing_open() -> None:
    dialler = Dialler()
    dialler.may_finish.set()
    pool = Pool(dialler)
    await pool.connection(PEER)
    await pool.close()
    assert dialler.channels[0].closed.done()
    with pytest.raises(PoolClosed):
        await pool.connection(PEER)
