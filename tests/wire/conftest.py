"""The wire's tests run on the loop that the processes run on."""

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Another loop's sockets and TLS end in other ways."""
    return {"uvloop": uvloop.new_event_loop}
