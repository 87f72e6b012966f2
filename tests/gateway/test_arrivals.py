"""Bodies that do not come: whoever announces them takes neither the memory nor the Run from anybody else."""

import asyncio

import pytest

from controlplane.kube.types import UserInfo
from dataplane.gateway import arrivals, holding
from dataplane.gateway.arrivals import Arrival, Arrivals
from dataplane.gateway.dispatch import Rejected
from dataplane.gateway.ledger import BodyLedger
from dataplane.gateway.limits import RUN_INFLIGHT_MAX
from statemachine.reasons import Reason
from statemachine.run import RunUID
from tests.gateway.stage import PATH, RUN, Client, Stage, encode_request, run_fact
from tests.kit.waiting import eventually

A, B = RunUID("run-a"), RunUID("run-b")
SLOW_S = 2.0


class Clock:
    """A clock that stands until it is moved."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def now_us(self) -> int:
        return 0


class Books:
    """Arrivals without a gateway: `gone` are those that made room, in their order."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ledger = BodyLedger(lambda: None)
        self.arrivals = Arrivals(self.ledger, self.clock)
        self.gone: list[str] = []

    def begin(self, name: str, caller: str = "greedy", run: RunUID = A, size: int = 0) -> Arrival:
        arrival = self.arrivals.begin(caller, run, lambda: self.gone.append(name))
        if size:
            self.arrivals.arrived(arrival, size)
        return arrival

    def refuses(self, caller: str = "greedy", run: RunUID = A) -> Reason:
        with pytest.raises(Rejected) as refused:
            self.begin("refused", caller, run)
        return refused.value.failure.reason

    def end(self, arrival: Arrival) -> None:
        self.arrivals.end(arrival)
        self.ledger.give(arrival.size)


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Books:
    for name, value in (
        ("ARRIVING_MAX", 6),
        ("CALLER_ARRIVING_MAX", 4),
        ("RUN_ARRIVING_MAX", 3),
        ("ARRIVING_MAX_BYTES", 600),
        ("CALLER_ARRIVING_MAX_BYTES", 400),
        ("RUN_ARRIVING_MAX_BYTES", 300),
    ):
        monkeypatch.setattr(arrivals, name, value)
    return Books()


def test_a_place_costs_no_memory_and_bytes_count_as_they_come(books: Books) -> None:
    one = books.begin("one")
    assert books.ledger.bytes == 0
    books.arrivals.arrived(one, 10)
    books.arrivals.arrived(one, 30)
    assert books.ledger.bytes == 30
    books.arrivals.arrived(one, 0)  # it was too large and is dropped
    assert books.ledger.bytes == 0
    books.end(one)
    assert len(books.arrivals) == 0


def test_a_run_and_a_caller_have_a_part_of_the_places(books: Books) -> None:
    for n in range(3):
        books.begin(f"a{n}")
    assert books.refuses() is Reason.TOO_MANY_INVOCATIONS
    books.begin("b0", run=B)
    assert books.refuses(run=B) is Reason.OVERLOADED
    books.begin("other", caller="modest", run=B)
    assert books.gone == []


def test_who_has_less_of_a_run_gets_in_for_one_of_who_has_most(books: Books) -> None:
    for n in range(3):
        books.begin(f"a{n}")
    books.begin("modest", caller="modest")
    assert books.gone == ["a2"]  # none is slow: the last has cost least
    books.begin("more", caller="modest")
    assert books.gone == ["a2", "a1"]
    assert books.refuses("modest") is Reason.TOO_MANY_INVOCATIONS


def test_slow_bodies_make_room_for_any_other(books: Books) -> None:
    for n in range(3):
        books.begin(f"a{n}", size=10 + n)
    books.clock.now_s += SLOW_S
    fast = books.begin("fast")
    assert (books.gone, books.ledger.bytes) == (["a0"], 23)
    books.arrivals.arrived(fast, 100)
    books.begin("next")
    assert books.gone == ["a0", "a1"]


def test_a_body_that_comes_fast_enough_makes_no_room_for_another_of_its_caller(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "ARRIVING_RATE_MIN", 10)
    for n in range(3):
        books.begin(f"a{n}", size=50)
    books.clock.now_s += SLOW_S
    assert books.refuses() is Reason.TOO_MANY_INVOCATIONS
    assert books.gone == []


def test_bytes_are_shared_as_places_are(books: Books) -> None:
    first, second = books.begin("first", size=150), books.begin("second", size=150)
    with pytest.raises(Rejected):
        books.arrivals.arrived(second, 151)
    modest = books.begin("modest", caller="modest", size=100)
    assert (books.gone, books.ledger.bytes) == (["second"], 250)
    with pytest.raises(Rejected) as told:
        books.arrivals.arrived(second, 151)
    assert told.value.failure.reason is Reason.OVERLOADED
    for arrival in (first, second, modest):
        books.end(arrival)
    assert (books.ledger.bytes, len(books.arrivals)) == (0, 0)


def test_no_body_makes_room_for_itself(books: Books) -> None:
    one = books.begin("one", size=300)
    books.clock.now_s += SLOW_S
    with pytest.raises(Rejected):
        books.arrivals.arrived(one, 301)
    assert books.gone == []
    books.end(one)
    assert books.ledger.bytes == 0


# --- the gateway


def unfinished(path: str = PATH, *, chunked: bool = False) -> bytes:
    """A head whose body does not come."""
    length = {"Content-Length": "-", "Transfer-Encoding": "chunked"} if chunked else {"Content-Length": "10"}
    return encode_request(path=path, body=b"", headers=length)


async def announce(gateway: Stage, count: int, head: bytes) -> list[Client]:
    clients = [await gateway.client() for _ in range(count)]
    for client in clients:
        client.send(head)
    await eventually(lambda: gateway.invoker.arriving == count)
    return clients


async def test_unfinished_bodies_take_no_place_of_their_run(gateway: Stage) -> None:
    slow = await announce(gateway, RUN_INFLIGHT_MAX + 10, unfinished())
    honest = await gateway.client()
    assert (await honest.request()).status == 200
    assert (await honest.request(body=b'"' + b"x" * 500_000 + b'"')).status == 200
    slow[0].send(b'"12345678"')
    assert (await slow[0].receive()).status == 200


async def test_bodies_that_are_only_announced_take_no_memory(gateway: Stage) -> None:
    await announce(gateway, 240, unfinished(chunked=True))
    assert gateway.invoker.body_bytes == 0
    honest = await gateway.client()
    assert (await honest.request(body=b'"' + b"x" * 1_000_000 + b'"')).status == 200


async def test_one_caller_of_a_run_keeps_no_other_caller_out(gateway: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "RUN_ARRIVING_MAX", 5)
    gateway.kube.users["kind"] = UserInfo(username="joe")
    gateway.kube.allowed.add(("joe", "hello"))
    slow = await announce(gateway, 5, unfinished())
    honest = await gateway.client()
    honest.send(unfinished().replace(b"Bearer good", b"Bearer kind"))
    answered = [asyncio.create_task(client.receive()) for client in slow]
    done, waiting = await asyncio.wait(answered, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    assert [(task.result().status, task.result().reason) for task in done] == [(503, "Overloaded")]
    honest.send(b'"12345678"')
    assert (await honest.receive()).status == 200
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_large_bodies_that_stop_coming_leave_room_for_those_of_others(
    gateway: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ARRIVING_MAX_BYTES", "CALLER_ARRIVING_MAX_BYTES", "RUN_ARRIVING_MAX_BYTES"):
        monkeypatch.setattr(arrivals, name, 3_000_000)
    gateway.kube.users["kind"] = UserInfo(username="joe")
    gateway.kube.allowed.add(("joe", "hello"))
    body = b'"' + b"x" * 900_000 + b'"'
    greedy = [await gateway.client() for _ in range(8)]
    for client in greedy:
        client.send(encode_request(body=body)[:-1])
    answered = [asyncio.create_task(client.receive()) for client in greedy]
    await eventually(lambda: sum(task.done() for task in answered) >= 5)
    assert {task.result().status for task in answered if task.done()} <= {429, 503}
    assert gateway.invoker.body_bytes <= 3_000_000
    honest = await gateway.client()
    for _ in range(3):
        assert (await honest.request(body=body, headers={"Authorization": "Bearer kind"})).status == 200
    for task in answered:
        task.cancel()
    await asyncio.gather(*answered, return_exceptions=True)


async def test_a_full_run_is_told_before_its_body_is_read(gateway: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await gateway.client()
    assert (await client.request()).status == 200
    monkeypatch.setattr(holding, "RUN_INFLIGHT_MAX", 0)
    client.send(unfinished())
    response = await client.receive()
    assert (response.status, response.reason) == (429, "TooManyInvocations")
    assert (gateway.invoker.arriving, gateway.invoker.in_flight) == (0, 0)


async def test_clients_that_go_leave_nothing_behind(gateway: Stage) -> None:
    other = RunUID("33333333-2222-4333-8444-555555555555")
    gateway.kube.allowed.add(("jane", "other"))
    gateway.see_run(run_fact(other, name="other"))
    clients = await announce(gateway, 6, unfinished())
    clients += [await gateway.client()]
    clients[-1].send(unfinished(PATH.replace(RUN, other)) + b"12345")
    await eventually(lambda: gateway.invoker.body_bytes == 5)
    for client in clients:
        client.writer.transport.abort()
    await eventually(lambda: gateway.invoker.in_flight == 0)
    assert (gateway.invoker.arriving, gateway.invoker.body_bytes) == (0, 0)
