"""The CA bundle of the APIService is what the installation trusts, whoever changes what."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator

import pytest

from controlplane.kube.clock import SystemClock
from controlplane.kube.errors import unavailable
from controlplane.kube.resources import APISERVICES
from controlplane.kube.types import APIService, ObjectMeta
from controlplane.runlogs import apiservice
from controlplane.runlogs.apiservice import NAME, ApiServiceCare
from tests.kit.fakekube import FakeKube
from tests.kit.waiting import eventually


class World:
    def __init__(self) -> None:
        self.kube = FakeKube()
        self.roots = b"root 1"

    def seed(self) -> None:
        self.kube.seed(APISERVICES, APIService(metadata=ObjectMeta(name=NAME, uid="a")))

    @property
    def bundle(self) -> bytes:
        return base64.b64decode(self.kube.store.find(APISERVICES, None, NAME).get("spec", {}).get("caBundle", ""))

    @contextlib.asynccontextmanager
    async def cared_for(self) -> AsyncIterator[None]:
        task = asyncio.create_task(ApiServiceCare(self.kube, SystemClock(), lambda: self.roots).run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_it_is_written_into_an_object_that_is_there_or_comes_later() -> None:
    world = World()
    async with world.cared_for():
        await eventually(lambda: any(request.verb == "watch" for request in world.kube.requests))
        assert not world.kube.writes()
        await world.kube.create(APISERVICES, None, APIService(metadata=ObjectMeta(name=NAME)))
        await eventually(lambda: world.bundle == b"root 1")


async def test_what_others_write_is_put_right_and_what_is_right_is_left_alone() -> None:
    world = World()
    world.seed()
    async with world.cared_for():
        await eventually(lambda: world.bundle == b"root 1")
        count = len(world.kube.writes())
        await world.kube.merge_patch(APISERVICES, None, NAME, {"metadata": {"labels": {"a": "b"}}})
        await world.kube.merge_patch(APISERVICES, None, NAME, {"spec": {"caBundle": "bm9uZQ=="}})
        await eventually(lambda: world.bundle == b"root 1")
        assert len(world.kube.writes()) == count + 3


async def test_a_rotation_and_an_api_without_an_answer_only_delay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apiservice, "LOOK_S", 0.02)
    monkeypatch.setattr(apiservice, "RETRY_S", 0.02)
    world = World()
    world.seed()
    world.kube.fail_next("patch", unavailable("down", sent=False))
    async with world.cared_for():
        await eventually(lambda: world.bundle == b"root 1")
        world.roots = b"root 2, root 1"
        await eventually(lambda: world.bundle == b"root 2, root 1")
