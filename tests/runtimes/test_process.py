"""The server's process: its configuration, how it stops, what it keeps of descriptors and processes over time."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from runtimes.contract import messages as m
from runtimes.server.environment import read_regular_file, remove_tree
from tests.conformance.dialects import BASH, PYTHON, Dialect
from tests.conformance.kit import ROOT, Bench, RuntimeProcess, alive, descendants, failing, until
from tests.runtimes.test_bounds import fds


def run_main(tmp_path: Path, **changes: str) -> subprocess.CompletedProcess[bytes]:
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "KRUNTIMES_SOCKET": str(tmp_path / "s"),
        "KRUNTIMES_WORK_DIR": str(tmp_path),
    } | changes
    return subprocess.run([sys.executable, "-m", "runtimes.server"], env=environ, capture_output=True, timeout=30)


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"KRUNTIMES_LANGUAGE": "cobol"}, 2, "python or bash"),
        ({"KRUNTIMES_WORK_DIR": "/no/such/folder"}, 2, "/no/such/folder"),
        ({"KRUNTIMES_SOCKET": "/no/such/folder/s"}, 2, "/no/such/folder"),
        ({"KRUNTIMES_SOCKET": "/tmp/" + "x" * 110}, 2, "107"),
        ({"KRUNTIMES_INTERPRETER": "/no/such/python"}, 1, "/no/such/python"),
        ({"KRUNTIMES_INTERPRETER": "/bin/false"}, 1, "/bin/false"),
    ],
)
def test_a_server_that_cannot_serve_says_why_in_one_line(
    tmp_path: Path, changes: dict[str, str], status: int, says: str
) -> None:
    ended = run_main(tmp_path, **changes)
    assert ended.returncode == status, ended.stderr
    assert says in ended.stderr.decode().splitlines()[-1]
    assert b"Traceback" not in ended.stderr


@pytest.mark.parametrize("dialect", [PYTHON, BASH], ids=lambda dialect: dialect.name)
async def test_an_upgrade_of_the_files_under_a_running_server_changes_nothing_for_it(
    dialect: Dialect, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "runtimes", tmp_path / "runtimes", ignore=shutil.ignore_patterns("__pycache__"))
    folder = Path(tempfile.mkdtemp(prefix="kr-"))
    server = RuntimeProcess(dialect, folder, environ={"PYTHONPATH": str(tmp_path)})
    server.start()
    client = await server.connect()
    bench = Bench(client, server, tmp_path)
    _, registration = await bench.register("echo")
    for path in (*(tmp_path / "runtimes").glob("python/*.py"), tmp_path / "runtimes/bash/driver.sh"):
        path.write_text("}{ what an upgrade has left here\n")
    before = descendants(server.pid)
    os.kill(next(pid for pid, what in before.items() if "/proc/self/fd" in what), signal.SIGKILL)
    await until(lambda: not any(map(alive, before)), "the worker went with it")
    assert await bench.invoke(registration, 1) == {"outputs": {"request": 1}}
    assert await bench.invoke((await bench.register("echo"))[1], 2) == {"outputs": {"request": 2}}
    client.close()
    await client.connection.closed
    assert await asyncio.to_thread(server.stop) == 0
    shutil.rmtree(folder)


async def test_told_to_stop_it_serves_until_its_owner_has_closed_everything(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    marks = tmp_path / "marks"  # There when the server starts: what is made later beside its folder is hidden.
    marks.mkdir()
    server = RuntimeProcess(PYTHON, folder)
    server.start()
    bench = Bench(await server.connect(), server, tmp_path)
    epoch, registration = await bench.register("wait")
    assert server.process is not None
    server.process.terminate()
    await until(lambda: "stopping" in (folder / "server.log").read_text(), "it knows that it is to stop")
    started, end = marks / "started", marks / "until"
    call = asyncio.create_task(bench.invoke(registration, {"started": str(started), "until": str(end)}))
    await until(started.exists, "a call was still taken")
    reply = await bench.unregister(epoch, wait_ms=0)
    assert reply.in_flight == 1 and server.process.poll() is None
    end.touch()
    assert "pid" in (await call)["outputs"]
    assert await asyncio.to_thread(server.process.wait, 10) == 0


async def test_nothing_is_kept_of_what_is_gone(python: Bench) -> None:
    async def cycle() -> None:
        epoch, registration = await python.register("echo")
        await python.invoke(registration)
        await python.unregister(epoch)
        head = python.task("", files={"main.py": "print(1)\n"})
        await python.client.execute_task(head)
        await python.result(head.epoch)
        await python.client.forget(head.epoch)

    def counted() -> tuple[int, int]:
        return fds(python.server.pid), len(descendants(python.server.pid))

    for _ in range(5):
        await cycle()
    await settle(python)
    before = counted()
    for _ in range(30):
        await cycle()
    await settle(python)
    await until(lambda: counted() == before, f"descriptors and processes are {before} again")


async def settle(bench: Bench) -> None:
    """Wait until the warm children are forked again."""
    last = -1
    while (now := len(descendants(bench.server.pid))) != last:
        last = now
        await asyncio.sleep(0.05)


async def test_a_worker_that_dies_idle_is_replaced_and_one_that_always_does_is_lost(python: Bench) -> None:
    source = "import os, threading\ndef invoke(r):\n    return {'outputs': {'pid': os.getpid()}}\n"
    _, registration = await python.register("", files={"main.py": source})
    first = (await python.invoke(registration))["outputs"]["pid"]
    os.kill(first, 9)
    await until(lambda: not alive(first), "it is gone")
    assert (await python.invoke(registration))["outputs"]["pid"] != first
    source += "threading.Timer(0.02, lambda: os._exit(1)).start()\n"
    _, registration = await python.register("", files={"main.py": source})
    status = await python.client.function_status(registration, wait_ms=10_000)
    assert status.state == "lost" and status.reason == "WorkerCrashed"


async def test_a_task_cannot_hold_the_server_by_its_outputs_file(python: Bench) -> None:
    for trick in ("os.mkfifo(path)", "os.symlink('/etc/passwd', path)", "os.mkdir(path)", "pass"):
        source = f"import os\npath = os.environ['KRUNTIME_OUTPUTS']\nos.unlink(path)\n{trick}\n"
        head = python.task("", files={"main.py": source})
        await python.client.execute_task(head)
        result = await python.result(head.epoch)
        assert result.exit_code == 0 and result.outputs == {} and result.outputs_error, trick
        await python.client.alive()


async def test_a_bash_handler_cannot_hold_the_server_by_its_files(bash: Bench) -> None:
    source = """
        invoke() {
            d=${KRUNTIME_REQUEST_FILE%/*}
            mkfifo "$d/request.3" "$d/answer.3" "$d/outputs.2" "$KRUNTIME_OUTPUTS"
            echo '{"outputs": {}}'
        }
    """
    _, registration = await bash.register("", files={"main.sh": source})
    began = time.monotonic()
    for _ in range(5):  # A worker with something in the way of a later call's files is replaced.
        assert await bash.invoke(registration) == {"outputs": {}}
    await bash.client.alive()
    assert time.monotonic() - began < 5


async def test_folders_without_permissions_are_removed(python: Bench) -> None:
    source = """
import os
def invoke(request):
    for name in ("HOME", "TMPDIR"):
        deep = os.path.join(os.environ[name], "a", "b")
        os.makedirs(deep)
        open(os.path.join(deep, "file"), "w").close()
        os.chmod(deep, 0)
        os.chmod(os.path.dirname(deep), 0)
    return {}
"""
    epoch, registration = await python.register("", files={"main.py": source})
    await python.invoke(registration)
    assert (await python.unregister(epoch)).gone
    beside = python.server.folder / "runs" / epoch.run_uid / "1"
    assert sorted(path.name for path in beside.iterdir()) == ["src"]


def test_a_tree_with_links_is_removed_and_their_targets_stay(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(outside)
    remove_tree(tree)
    assert not tree.exists() and (outside / "file").exists()


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular_file(tmp_path / "file", 3) == b"123"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("pipe", "link", "."):
        with pytest.raises(OSError):
            read_regular_file(tmp_path / name, 3)


async def test_the_deadline_of_a_call_is_at_most_the_longest(python: Bench) -> None:
    source = "def invoke(request, context):\n    return {'outputs': {'left': context.remaining()}}\n"
    _, registration = await python.register("", files={"main.py": source})
    assert 290 < (await python.invoke(registration, timeout=3600))["outputs"]["left"] <= 300.1


async def test_ids_that_are_no_visible_ascii_are_refused(python: Bench) -> None:
    _, registration = await python.register("echo")
    for bad in ("", "a b", "ü", "a\nb", "x" * 129):
        async with failing("InvalidArgument"):
            await python.invoke(registration, invocation=bad)
    head = m.InvokeRequest(registration_id=registration, invocation_id="i", traceparent="a\nb")
    async with failing("InvalidArgument"):
        await python.client.invoke_function(head, b"", timeout=5)
