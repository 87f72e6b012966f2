"""Handlers that do odd things in odd combinations: each gets an answer of its own, and the next call is served."""

from __future__ import annotations

import textwrap
import time
from typing import Any

import pytest

from tests.conformance.kit import Bench, alive, failing
from tests.runtimes.test_python_functions import load


@pytest.mark.parametrize(
    ("source", "reason", "says"),
    [
        ("async def invoke(r):\n    yield {'outputs': {}}", "HandlerResultInvalid", "async_generator"),
        ("def invoke(r):\n    yield {'outputs': {}}", "HandlerResultInvalid", "generator"),
        ("def invoke(r):\n    async def f(): return 1\n    return [f()]", "HandlerResultInvalid", "list"),
        ("async def invoke(r):\n    raise asyncio.CancelledError", "HandlerFailed", "CancelledError"),
        (
            "async def invoke(r):\n    asyncio.get_running_loop().stop(); await asyncio.sleep(9)",
            "HandlerFailed",
            "loop",
        ),
        (
            "async def invoke(r):\n    asyncio.current_task().cancel(); await asyncio.sleep(9)",
            "HandlerFailed",
            "Cancelled",
        ),
        ("async def invoke(r):\n    sys.exit(4)", "HandlerFailed", "exit"),
        ("def invoke(r):\n    return asyncio.run(invoke(r))", "HandlerFailed", ""),
        (
            "class D(dict):\n    def __iter__(s): sys.exit(1)\ndef invoke(r):\n    return D(a=1)",
            "HandlerResultInvalid",
            "",
        ),
        ("class S(str):\n    def __eq__(s, o): os._exit(5)\ndef invoke(r):\n    return {S('outputs'): {}}", "", ""),
        (
            "class E(Exception):\n    def __str__(s): os._exit(6)\ndef invoke(r):\n    raise E",
            "WorkerCrashed",
            "code 6",
        ),
        ("class E(Exception):\n    __module__ = 5\ndef invoke(r):\n    raise E('odd')", "HandlerFailed", "odd"),
        ("def invoke(r):\n    raise ExceptionGroup('many', [ValueError(1)])", "HandlerFailed", "many"),
        ("def invoke(r):\n    os.abort()", "WorkerCrashed", "signal 6"),
        ("def invoke(r):\n    os.execv('/bin/true', ['true'])", "WorkerCrashed", ""),
        ("def invoke(r):\n    os.kill(0, 9)", "WorkerCrashed", "signal 9"),
        ("def invoke(r):\n    os.setpgid(0, 0)", "HandlerFailed", "PermissionError"),
        ("def invoke(r):\n    import builtins; del builtins.len\n    os._exit(1)", "WorkerCrashed", ""),
        ("def invoke(r):\n    signal.alarm(1); signal.pause()", "WorkerCrashed", "signal 14"),
        ("def invoke(r):\n    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\n    while 1: pass", "WorkerCrashed", ""),
        ("def invoke(r):\n    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0)); open('x')", "HandlerFailed", ""),
        (
            "def invoke(r):\n    resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9)); open('x', 'w').write('y' * 99)",
            "",
            "",
        ),
        (
            "def invoke(r):\n    threading.Thread(target=os._exit, args=(7,)).start(); time.sleep(9)",
            "WorkerCrashed",
            "7",
        ),
        (
            "def invoke(r):\n    [os.write(fd, b'\\0' * 99) for fd in range(3, 20) if _ok(fd)]; return {}",
            "WorkerCrashed",
            "",
        ),
        ("def invoke(r):\n    socket.socket(fileno=3).shutdown(2); return {}", "WorkerCrashed", ""),
        ("def invoke(r):\n    prctl(4, 1); prctl(1, 0); prctl(36, 1); os._exit(8)", "WorkerCrashed", "code 8"),
    ],
)
async def test_an_odd_call_has_its_own_answer_and_the_next_is_served(
    python: Bench, source: str, reason: str, says: str
) -> None:
    before = """
        import asyncio, builtins, ctypes, os, resource, signal, socket, sys, threading, time
        def prctl(option, value):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
        def _ok(fd):
            try:
                return os.fstat(fd)
            except OSError:
                return None
    """
    after = "\n_odd = invoke\ndef choose(r):\n    return _odd(r) if r else {}\n"
    registration = await load(python, textwrap.dedent(before) + source + after, handler="main.choose")
    try:
        await python.invoke(registration, 1, timeout=8)
        assert not reason, "it was answered"
    except Exception as error:
        assert reason in str(error) and says in str(error), error
    assert await python.invoke(registration, 0) == {"outputs": {}}


@pytest.mark.parametrize(
    "body",
    [
        "sys.settrace(lambda *a: None)",
        "sys.setprofile(lambda *a: None)",
        "threading.setprofile(lambda *a: 1 / 0)",
        "os.umask(0o777)",
        "os.nice(5)",
        "gc.callbacks.append(lambda *a: 1 / 0); gc.collect()",
        "atexit.register(os._exit, 9)",
        "prctl(4, 1); prctl(1, 0); prctl(36, 1)",
        "weakref.finalize(invoke, print, 'gone')",
        "locale.setlocale(locale.LC_ALL, 'C')",
        "sys.stdout = open('/dev/full', 'w'); sys.stdout.write('x')",
        "sys.stdin = sys.stdout = sys.stderr = 5",
        "warnings.simplefilter('error'); sys.excepthook = None; sys.unraisablehook = None",
        "asyncio.set_event_loop(None)",
        "os.environ['PYTHONPATH'] = '/'; os.environ['LD_PRELOAD'] = '/no/such'; os.putenv('HOME', '/')",
        "signal.setitimer(signal.ITIMER_VIRTUAL, 60)",
        "os.mkfifo('f'); os.symlink('f', 'g'); os.chmod(os.environ['HOME'], 0)",
        "socket.setdefaulttimeout(0.000001)",
        "time.sleep = json.loads = os.getpid = os._exit = len",
        "[os.posix_spawn('/bin/sleep', ['sleep', '60'], {}) for _ in range(3)]",
    ],
)
async def test_what_it_leaves_behind_changes_no_answer(python: Bench, body: str) -> None:
    source = "import asyncio, atexit, ctypes, gc, json, locale, os, signal, socket, sys\n"
    source += "import threading, time, warnings, weakref\n"
    source += "def prctl(option, value):\n    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)\n"
    source += f"def invoke(request):\n    if request:\n        {body}\n    return {{'outputs': {{'true': 1}}}}\n"
    epoch, registration = await python.register("", files={"main.py": source})
    began = time.monotonic()
    for request in (1, 0, 0):
        assert await python.invoke(registration, request) == {"outputs": {"true": 1}}
    assert time.monotonic() - began < 3
    assert (await python.unregister(epoch)).gone


async def test_what_threads_and_tasks_go_on_with_is_no_part_of_a_later_call(python: Bench) -> None:
    source = """
        import asyncio, os, sys, threading, time
        def shout():
            while True:
                print("noise"); sys.stderr.write("noise\\n"); time.sleep(0.001)
        async def busy():
            while True:
                print("noise"); await asyncio.sleep(0)
        async def invoke(request):
            if request == "leave":
                threading.Thread(target=shout).start()
                asyncio.ensure_future(busy())
            await asyncio.sleep(0.01)
            return {"outputs": {"request": request, "pid": os.getpid()}}
    """
    epoch, registration = await python.register("", files={"main.py": textwrap.dedent(source)})
    first: Any = (await python.invoke(registration, "leave"))["outputs"]
    for number in range(20):
        found = (await python.invoke(registration, number))["outputs"]
        assert found == {"request": number, "pid": first["pid"]}
    assert (await python.unregister(epoch)).gone
    assert not alive(first["pid"])


async def test_folders_however_deep_many_and_shut_go_at_release(python: Bench) -> None:
    source = """
        import os
        def invoke(request):
            for folder in (os.environ["HOME"], os.environ["TMPDIR"], os.environ["KRUNTIME_ARTIFACTS_DIR"]):
                os.chdir(folder)
                for number in range(300):
                    open(str(number), "w").close()
                for _ in range(3000):
                    os.mkdir("d" * 30)
                    os.chdir("d" * 30)
                os.chmod(folder + "/" + "d" * 30, 0)
                os.chmod(folder, 0)
            raise ValueError("it has left enough")
    """
    epoch, registration = await python.register("", files={"main.py": textwrap.dedent(source)})
    async with failing("HandlerFailed") as caught:
        await python.invoke(registration, {})
    assert "left enough" in caught[0].message
    assert (await python.unregister(epoch)).gone
    beside = python.server.folder / "runs" / epoch.run_uid / "1"
    assert {path.name for path in beside.iterdir()} <= {"src", "artifacts"}


async def test_an_answer_that_nobody_has_asked_for_is_nobodys(python: Bench) -> None:
    source = """
        import os, struct, time
        def answer(sequence, text):
            return struct.pack(">BIII", 12, sequence, 0, len(text)) + text
        def invoke(request):
            if request == "many":
                # One write: all of it is there before the first frame answers the call, and the next one is asked.
                os.write(3, b"".join(answer(sequence, b'{"outputs": {"forged": 1}}') for sequence in (1, 1, 2, 3)))
                time.sleep(0.2)
            return {"outputs": {"request": request}}
    """
    registration = await load(python, source)
    assert await python.invoke(registration, "many") == {"outputs": {"forged": 1}}  # Its own, at least.
    for number in range(3):
        assert (await python.invoke(registration, number))["outputs"] == {"request": number}


@pytest.mark.parametrize("damage", ["json.dumps = None", "os.getpid = os._exit = None", "sys.exc_info = None"])
async def test_what_it_does_to_modules_hides_no_failure(python: Bench, damage: str) -> None:
    source = f"import json, os, sys\ndef invoke(request):\n    {damage}\n    raise ValueError('why')\n"
    registration = await load(python, source)
    for _ in range(2):
        async with failing("HandlerFailed") as caught:
            await python.invoke(registration)
        assert caught[0].message == "ValueError: why"
