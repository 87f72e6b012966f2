"""The artifacts folder of a worker, whatever the code does to it: its own call may lose its files, no other does."""

import asyncio
import json
from pathlib import Path

import pytest

from runtimes.contract import messages as m
from tests.conformance.kit import Bench

DOES = """
import os, shutil

def invoke(request, context):
    folder = os.environ["KRUNTIME_ARTIFACTS_DIR"]
    for action in request:
        if action == "put":
            context.artifacts.put("deep/a", memoryview(b"data"))
        elif action == "remove":
            shutil.rmtree(folder)
        elif action == "link":
            os.symlink("/etc", folder)
        elif action == "file":
            open(folder, "w").close()
        elif action == "hide":
            os.utime(folder, ns=(0, 0))
        elif action == "undo":
            open(folder + "/x", "w").close()
            os.remove(folder + "/x")
    return {"outputs": {}}
"""


async def left(bench: Bench, epoch: m.Epoch, registration: str, *actions: str) -> dict[str, str]:
    head = m.InvokeRequest(registration_id=registration, invocation_id="i")
    reply, _ = await bench.client.invoke_function(head, json.dumps(actions).encode(), timeout=10)
    folder = Path(bench.source(epoch, {})).parent / "artifacts" / reply.artifacts
    found = folder.rglob("*") if reply.artifacts else ()
    return {str(path.relative_to(folder)): path.read_text() for path in found if path.is_file()}


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (("put", "remove"), {}),
        (("remove", "put"), {"deep/a": "data"}),
        (("put", "remove", "link"), {}),
        (("put", "remove", "file"), {}),
        (("undo",), {}),
        (("put", "put"), {"deep/a": "data"}),
    ],
)
async def test_what_code_does_to_its_folder_ends_with_its_call(
    python: Bench, actions: tuple[str, ...], expected: dict[str, str]
) -> None:
    epoch, registration = await python.register("", files={"main.py": DOES})
    for _ in range(2):
        assert await left(python, epoch, registration, *actions) == expected
        assert await left(python, epoch, registration) == {}
        assert await left(python, epoch, registration, "put") == {"deep/a": "data"}


async def test_files_of_calls_at_once_do_not_mix(python: Bench) -> None:
    epoch, registration = await python.register("", files={"main.py": DOES}, concurrency=4)
    for _ in range(5):
        found = await asyncio.gather(*(left(python, epoch, registration, "put") for _ in range(4)))
        assert found == [{"deep/a": "data"}] * 4
