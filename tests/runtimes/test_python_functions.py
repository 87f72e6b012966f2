"""Python handlers, good and bad: each with its right answer, and the next call served."""

from __future__ import annotations

import asyncio
import os
import signal
import textwrap
import time
from typing import Any

import pytest

from tests.conformance.kit import Bench, alive, failing, until


async def load(bench: Bench, source: str, handler: str = "main.invoke", **more: Any) -> str:
    files = more.pop("files", {}) | {"main.py": textwrap.dedent(source)}
    return (await bench.register("", files=files, handler=handler, **more))[1]


async def outputs(bench: Bench, source: str, request: Any = None, **more: Any) -> Any:
    return (await bench.invoke(await load(bench, source, **more), request))["outputs"]


# --- results


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ("None", "None"),
        ("[1]", "list"),
        ("'text'", "str"),
        ("{'outputs': {'x': float('nan')}}", "JSON"),
        ("{'outputs': {'x': float('inf')}}", "JSON"),
        ("{'outputs': {'x': {1, 2}}}", "set"),
        ("{'outputs': {'x': b'bytes'}}", "bytes"),
        ("{'outputs': {'x': object()}}", "object"),
        ("{'outputs': {(1, 2): 3}}", "tuple"),
        ("{'outputs': {'x': chr(0xd800)}}", "surrogates"),
        ("{'outputs': cyclic}", "ircular"),
        ("{'outputs': deep}", "deep"),
        ("{'outputs': [1]}", "outputs"),
        ("{'outputs': {}, 'summary': 1}", "summary"),
        ("{'outputs': {}, 'artifactRefs': 'x'}", "artifactRefs"),
        ("{'outputs': {}, 'artifactRefs': [{'name': 'x'}]}", "artifactRefs"),
        ("(x for x in [1])", "generator"),
        ("Broken()", "JSON"),
    ],
)
async def test_a_result_that_is_no_answer_says_what_was_expected(python: Bench, result: str, says: str) -> None:
    source = f"""
        cyclic = {{}}
        cyclic["x"] = cyclic
        deep = {{}}
        for _ in range(100000):
            deep = {{"x": deep}}
        class Broken(dict):
            def get(self, *a): raise KeyError("broken on purpose")
        def invoke(request):
            return {result} if request else {{"outputs": {{}}}}
    """
    registration = await load(python, source)
    async with failing("HandlerResultInvalid") as caught:
        await python.invoke(registration, 1)
    assert says in caught[0].message, caught[0].message
    assert await python.invoke(registration, 0) == {"outputs": {}}


async def test_a_result_may_leave_outputs_out_and_name_artifacts(python: Bench) -> None:
    registration = await load(python, "def invoke(request):\n    return request\n")
    assert await python.invoke(registration, {}) == {"outputs": {}}
    refs = {"outputs": {"n": 1}, "artifactRefs": [{"name": "a", "uri": "file:///a", "sizeBytes": 1}]}
    assert await python.invoke(registration, refs) == refs


async def test_text_is_utf8_and_not_escaped(python: Bench) -> None:
    from runtimes.contract import messages as m

    registration = await load(python, 'def invoke(request):\n    return {"outputs": {"x": "ü😀"}}\n')
    head = m.InvokeRequest(registration_id=registration, invocation_id="i")
    _, body = await python.client.invoke_function(head, b"", timeout=5)
    assert body == '{"outputs":{"x":"ü😀"}}'.encode()


# --- shapes of handlers


async def test_a_handler_may_be_async_and_keeps_its_loop(python: Bench) -> None:
    source = """
        import asyncio
        loops = set()
        async def invoke(request):
            await asyncio.sleep(0)
            loops.add(id(asyncio.get_running_loop()))
            return {"outputs": {"loops": len(loops)}}
    """
    registration = await load(python, source)
    assert [(await python.invoke(registration))["outputs"]["loops"] for _ in range(3)] == [1, 1, 1]


async def test_a_plain_handler_may_return_an_awaitable(python: Bench) -> None:
    source = """
        async def work(request):
            return {"outputs": {"x": request}}
        def invoke(request):
            return work(request)
    """
    assert await outputs(python, source, 5) == {"x": 5}


@pytest.mark.parametrize(
    ("signature", "takes"),
    [
        ("request", False),
        ("request, context", True),
        ("event, ctx", True),
        ("request, retries=3", False),
        ("request, context=None", True),
        ("request, /", False),
        ("*args", False),
        ("request, *, option=1", False),
    ],
)
async def test_the_second_parameter_decides_whether_there_is_a_context(
    python: Bench, signature: str, takes: bool
) -> None:
    source = f"""
        def invoke({signature}):
            values = locals().values()
            return {{"outputs": {{"context": any(hasattr(v, "invocation_id") for v in values)}}}}
    """
    assert await outputs(python, source) == {"context": takes}


@pytest.mark.parametrize("signature", ["", "a, b, c", "request, *, needed"])
async def test_a_handler_that_cannot_be_called_so_is_refused(python: Bench, signature: str) -> None:
    async with failing("HandlerNotFound") as caught:
        await load(python, f"def invoke({signature}):\n    return {{}}\n")
    assert "invoke(request, context)" in caught[0].message


async def test_a_class_instance_or_partial_may_be_the_handler(python: Bench) -> None:
    source = """
        import functools
        class Model:
            def __call__(self, request):
                return {"outputs": {"called": request}}
        invoke = Model()
        second = functools.partial(lambda a, request: {"outputs": {"a": a}}, 1)
    """
    assert await outputs(python, source, 1) == {"called": 1}
    assert await outputs(python, source, 1, handler="main.second") == {"a": 1}


async def test_the_context_tells_the_facts_of_the_call(python: Bench) -> None:
    source = """
        import time
        def invoke(request, context):
            context.logger.info("from the logger")
            return {"outputs": {"id": context.invocation_id, "left": context.remaining(), "run": dict(context.run),
                                "deadline": context.deadline - time.time()}}
    """
    epoch, registration = await python.register("", files={"main.py": textwrap.dedent(source)})
    facts = (await python.invoke(registration, timeout=5, invocation="my-id"))["outputs"]
    assert facts["id"] == "my-id" and facts["run"] == {"uid": epoch.run_uid, "attempt": 1}
    assert 3 < facts["left"] <= 5 and 3 < facts["deadline"] <= 5
    assert [e["line"] for e in python.log(epoch.run_uid) if e["invocation"] == "my-id"] == ["INFO from the logger"]


# --- loading


@pytest.mark.parametrize(
    ("source", "reason", "says"),
    [
        ("import no_such_module\n", "ImportFailed", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def invoke(:\n", "ImportFailed", "SyntaxError"),
        ("1/0\n", "ImportFailed", "ZeroDivisionError"),
        ("import sys; sys.exit(3)\n", "ImportFailed", "SystemExit: 3"),
        ("import os; os._exit(3)\n", "ImportFailed", "exit code 3"),
        ("raise KeyboardInterrupt\n", "ImportFailed", "KeyboardInterrupt"),
        ("import os; os.fork(); invoke = 5\n", "HandlerNotFound", "int"),
        ("invoke = 5\n", "HandlerNotFound", "int"),
        ("\x00", "ImportFailed", "null bytes"),
        ("x = '\udc80'\n", "ImportFailed", "SyntaxError"),
        ("class E(Exception):\n    def __str__(self): 1/0\nraise E\n", "ImportFailed", "E"),
        ("import os; os.closerange(3, 100); invoke = print\n", "ImportFailed", "exit code"),
    ],
)
async def test_a_source_that_does_not_load_says_why(python: Bench, source: str, reason: str, says: str) -> None:
    epoch = python.epoch()
    python.source(epoch, {})
    (python.server.folder / "runs" / epoch.run_uid / "1/src/main.py").write_bytes(
        source.encode("utf-8", "surrogateescape")
    )
    async with failing(reason) as caught:
        await python.register("", epoch=epoch, files={"other.py": ""})
    assert says in caught[0].message, caught[0]


async def test_an_import_error_shows_the_last_frames_and_not_ours(python: Bench) -> None:
    async with failing("ImportFailed") as caught:
        await load(python, "import helper\n", files={"helper.py": "def f():\n    raise ValueError('deep')\nf()\n"})
    details = caught[0].details
    assert details["type"] == "ValueError"
    assert "helper.py" in details["frames"] and "line 2" in details["frames"] and "main.py" in details["frames"]
    assert "zygote" not in details["frames"] and "importlib" not in details["frames"]


@pytest.mark.parametrize("handler", ["..invoke", "a..invoke", "main.", ".invoke", "../main.invoke", "a/b.invoke"])
async def test_a_handler_that_names_no_file_is_source_invalid(python: Bench, handler: str) -> None:
    async with failing("SourceInvalid"):
        await load(python, "def invoke(r): pass\n", handler=handler)


async def test_a_link_out_of_the_source_is_refused(python: Bench) -> None:
    epoch = python.epoch()
    python.source(epoch, {})
    secret = python.tmp / "secret.py"
    secret.write_text("def invoke(request):\n    return {}\n")
    (python.server.folder / "runs" / epoch.run_uid / "1/src/main.py").symlink_to(secret)
    async with failing("SourceInvalid"):
        await python.register("", epoch=epoch, files={"other.py": ""})


async def test_modules_have_their_dotted_names_and_need_no_init(python: Bench) -> None:
    files = {
        "pkg/deep.py": "import sys\nfrom pkg import side\nimport top\ndef run(request):\n"
        "    return {'outputs': {'name': __name__, 'known': sys.modules['pkg.deep'] is sys.modules[__name__],"
        " 'side': side.X, 'top': top.X}}\n",
        "pkg/side.py": "X = 1\n",
        "top.py": "X = 2\n",
    }
    _, registration = await python.register("", files=files, handler="pkg.deep.run")
    assert (await python.invoke(registration))["outputs"] == {"name": "pkg.deep", "known": True, "side": 1, "top": 2}


async def test_a_package_with_init_runs_it(python: Bench) -> None:
    files = {
        "pkg/__init__.py": "VALUE = 7\n",
        "pkg/deep.py": "from . import VALUE\ndef run(r):\n    return {'outputs': {'v': VALUE}}\n",
    }
    _, registration = await python.register("", files=files, handler="pkg.deep.run")
    assert (await python.invoke(registration))["outputs"] == {"v": 7}


async def test_the_users_files_come_before_what_is_installed_or_warm(python: Bench) -> None:
    names = ("json", "test", "inspect", "asyncio", "socket")
    source = "".join(f"import {name}\n" for name in names)
    source += f"def invoke(r):\n    return {{'outputs': {{'mine': [m.MINE for m in ({', '.join(names)},)]}}}}\n"
    files = {f"{name}.py": "MINE = True\n" for name in names}
    assert await outputs(python, source, files=files) == {"mine": [True] * 5}
    assert await outputs(
        python,
        "MINE = True\ndef invoke(r):\n    return {'outputs': {'n': __name__}}\n",
        handler="json.invoke",
        files={"json.py": "def invoke(r):\n    return {'outputs': {'n': __name__}}\n"},
    ) == {"n": "json"}


async def test_nothing_of_the_product_is_on_the_path(python: Bench) -> None:
    source = """
        import sys, os
        def invoke(request):
            found = []
            for name in ("runtimes", "statemachine", "msgspec_of_the_server", "zygote"):
                try:
                    __import__(name)
                    found.append(name)
                except ImportError:
                    pass
            found += [name for name in sys.modules if "kruntimes" in name]
            return {"outputs": {"found": found, "first": sys.path[0] == os.getcwd(), "argv": sys.argv,
                                "secret": "SECRET_OF_THE_SERVER" in os.environ, "main": dir(sys.modules["__main__"])}}
    """
    facts = await outputs(python, source)
    assert facts["found"] == [] and facts["first"] and not facts["secret"] and facts["argv"] == [""]
    assert not [name for name in facts["main"] if not name.startswith("__")]


async def test_module_state_is_kept_from_call_to_call(python: Bench) -> None:
    registration = await load(python, python.dialect.functions["count"])
    assert [(await python.invoke(registration))["outputs"]["calls"] for _ in range(3)] == [1, 2, 3]


# --- bad behaviour in a call


@pytest.mark.parametrize(
    ("body", "reason", "says"),
    [
        ("raise ValueError('why')", "HandlerFailed", "ValueError: why"),
        ("raise BaseException('base')", "HandlerFailed", "BaseException: base"),
        ("raise KeyboardInterrupt", "HandlerFailed", "KeyboardInterrupt"),
        ("sys.exit(3)", "HandlerFailed", "SystemExit: 3"),
        ("raise GeneratorExit", "HandlerFailed", "GeneratorExit"),
        ("return invoke(request)", "HandlerFailed", "RecursionError"),
        ("raise ValueError('\\udc80')", "HandlerFailed", "ValueError"),
        ("raise ValueError('x' * 100000)", "HandlerFailed", "ValueError: xxx"),
        ("open('/no/such/file')", "HandlerFailed", "FileNotFoundError"),
        ("os._exit(9)", "WorkerCrashed", "exit code 9"),
        ("os.kill(os.getpid(), 11)", "WorkerCrashed", "signal 11"),
        ("os.closerange(3, 1000); return {}", "WorkerCrashed", ""),
        ("os.write(3, b'garbage on the channel'); return {}", "WorkerCrashed", ""),
        ("import ctypes; ctypes.string_at(0)", "WorkerCrashed", "signal 11"),
        ("files = [open('/dev/null') for _ in range(10000)]", "HandlerFailed", "Too many open files"),
    ],
)
async def test_a_bad_call_has_its_own_answer_and_the_next_is_served(
    python: Bench, body: str, reason: str, says: str
) -> None:
    source = f"import os, sys\ndef invoke(request):\n    if not request:\n        return {{}}\n    {body}\n"
    registration = await load(python, source)
    async with failing(reason) as caught:
        await python.invoke(registration, 1)
    assert says in caught[0].message, caught[0]
    assert len(caught[0].message) < 5000
    assert await python.invoke(registration, 0) == {"outputs": {}}


async def test_an_error_shows_the_last_frames(python: Bench) -> None:
    source = """
        def helper():
            raise ValueError("deep inside")
        def invoke(request):
            helper()
    """
    registration = await load(python, source)
    async with failing("HandlerFailed") as caught:
        await python.invoke(registration)
    frames = caught[0].details["frames"]
    assert "in helper" in frames and "in invoke" in frames and "zygote" not in frames


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)",
        "threading.Thread(target=time.sleep, args=(60,)).start(); time.sleep(60)",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "\n    while True:\n        try:\n            time.sleep(60)\n        except BaseException:\n            pass",
    ],
)
async def test_whatever_it_does_it_is_ended_at_the_deadline(python: Bench, body: str) -> None:
    source = "import os, signal, time, threading\ndef invoke(request):\n    if not request:\n        return {}\n"
    source += f"    {body}\n"
    registration = await load(python, source)
    began = time.monotonic()
    async with failing("InvocationTimeout"):
        await python.invoke(registration, 1, timeout=0.2)
    assert time.monotonic() - began < 1.5
    assert await python.invoke(registration, 0) == {"outputs": {}}


@pytest.mark.parametrize(
    "body",
    [
        "print('x' * 10 * 1024 * 1024)",
        "sys.stdout = None; sys.stderr = None",
        "sys.stdout.close(); sys.stderr.close()",
        "print('\\udc80'); sys.stderr.write('\\udc80')",
        "os.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
        "signal.signal(signal.SIGALRM, lambda *_: 1 / 0); signal.setitimer(signal.ITIMER_REAL, 5)",
        "threading.Thread(target=lambda: time.sleep(60), daemon=True).start()",
        "threading.Thread(target=lambda: time.sleep(60)).start()",
        "os.close(1); os.close(2)",
        "os.closerange(0, 3); files = [open('/dev/null') for _ in range(3)]",
        "[signal.signal(n, signal.SIG_IGN) for n in set(signal.valid_signals()) - {9, 19} if n < 32]",
        "subprocess.Popen(['sh', '-c', 'sleep 60; echo {}'])",
        "multiprocessing.get_context('fork').Process(target=print, args=('in a child',)).start()",
        "os.chdir('/'); os.environ.clear(); sys.path.clear(); sys.modules.clear()",
        "sys.setrecursionlimit(90)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))",
        "os.close(0)",
        "sys.stdin.read()",
        "import gc; gc.disable(); gc.set_threshold(0)",
        "json.JSONEncoder.encode = None; json.dumps = None; struct.Struct = None",
        "subprocess.run(['true'], check=True)",
        "os.system('exit 3')",
    ],
)
async def test_side_effects_do_not_change_or_delay_answers(python: Bench, body: str) -> None:
    source = (
        "import json, multiprocessing, os, signal, struct, subprocess, sys, threading, time\n"
        f"def invoke(request):\n    {body}\n    return {{'outputs': {{'true': 1}}}}\n"
    )
    registration = await load(python, source)
    began = time.monotonic()
    assert await python.invoke(registration) == {"outputs": {"true": 1}}
    assert time.monotonic() - began < 5


async def test_an_alarm_left_behind_does_not_end_the_worker(python: Bench) -> None:
    source = """
        import os, signal
        def ring(*_):
            raise RuntimeError("rang too late")
        def invoke(request):
            signal.signal(signal.SIGALRM, ring)
            signal.setitimer(signal.ITIMER_REAL, 0.03)
            return {"outputs": {"pid": os.getpid()}}
    """
    registration = await load(python, source)
    first = await python.invoke(registration)
    await asyncio.sleep(0.1)
    assert await python.invoke(registration) == first


async def test_a_fork_that_returns_from_the_handler_answers_nothing(python: Bench) -> None:
    source = """
        import os
        parent = os.getpid()
        def invoke(request):
            os.fork()
            if request == "raise" and os.getpid() != parent:
                raise ValueError("in the child")
            return {"outputs": {"parent": os.getpid() == parent}}
    """
    registration = await load(python, source)
    for request in ("return", "raise") * 3:
        assert await python.invoke(registration, request) == {"outputs": {"parent": True}}


async def test_a_deleted_working_directory_harms_only_itself(python: Bench) -> None:
    source = """
        import os, shutil
        def invoke(request):
            shutil.rmtree(".", ignore_errors=True)
            os.makedirs(os.environ["HOME"] + "/here", exist_ok=True)
            os.chdir(os.environ["HOME"] + "/here")
            os.rmdir(os.environ["HOME"] + "/here")
            try:
                where = os.getcwd()
            except FileNotFoundError:
                where = None
            return {"outputs": {"gone": not os.path.exists(__file__) and where is None}}
    """
    registration = await load(python, source)
    for _ in range(2):
        assert await python.invoke(registration) == {"outputs": {"gone": True}}


async def test_multiprocessing_works_by_spawn_and_fork(python: Bench) -> None:
    source = """
        import multiprocessing
        def square(n):
            return n * n
        def invoke(request):
            with multiprocessing.get_context(request).Pool(1) as pool:
                return {"outputs": {"squares": pool.map(square, [1, 2, 3])}}
    """
    registration = await load(python, source)
    for method in ("fork", "spawn"):
        assert await python.invoke(registration, method) == {"outputs": {"squares": [1, 4, 9]}}


async def test_concurrency_makes_processes_as_calls_need_them(python: Bench) -> None:
    source = """
        import os, time
        def invoke(request):
            time.sleep(request)
            return {"outputs": {"pid": os.getpid()}}
    """
    registration = await load(python, source, concurrency=4)
    assert (await python.client.function_status(registration)).workers == 1
    answers = await asyncio.gather(*(python.invoke(registration, 0.3) for _ in range(4)))
    assert len({answer["outputs"]["pid"] for answer in answers}) == 4
    async with failing("TooManyInvocations"):
        await asyncio.gather(*(python.invoke(registration, 0.3) for _ in range(5)))


async def test_lines_of_a_call_that_was_killed_are_logged(python: Bench) -> None:
    source = "import time\ndef invoke(request):\n    print('before')\n    time.sleep(60)\n"
    epoch, registration = await python.register("", files={"main.py": source})
    async with failing("InvocationTimeout"):
        await python.invoke(registration, timeout=0.2, invocation="killed")
    assert [(e["invocation"], e["line"]) for e in python.log(epoch.run_uid)] == [("killed", "before")]


async def test_a_large_request_and_result_pass_through_a_worker(python: Bench) -> None:
    registration = await load(python, "def invoke(request):\n    return {'outputs': {'x': request}}\n")
    text = "ü" * 500_000
    assert await python.invoke(registration, text) == {"outputs": {"x": text}}


async def test_a_zygote_that_dies_is_replaced_and_functions_come_back(python: Bench) -> None:
    registration = await load(
        python, "import os\ndef invoke(r):\n    return {'outputs': {'ppid': os.getppid(), 'pid': os.getpid()}}\n"
    )
    before = (await python.invoke(registration))["outputs"]
    os.kill(before["ppid"], signal.SIGKILL)
    await until(lambda: not alive(before["pid"]), "the worker went with it")
    after = (await python.invoke(registration))["outputs"]
    assert after["ppid"] != before["ppid"]
    assert (await python.client.function_status(registration)).state == "ready"


async def test_other_interpreters_serve_the_same(other_python: Bench) -> None:
    source = """
        import sys
        async def invoke(request, context):
            print("printed")
            return {"outputs": {"version": sys.version_info[:2], "request": request, "left": context.remaining() > 0}}
        def fail(request):
            raise ValueError("why")
    """
    facts = await outputs(other_python, source, {"a": [1]})
    assert facts["request"] == {"a": [1]} and facts["left"]
    registration = await load(other_python, source, handler="main.fail")
    async with failing("HandlerFailed") as caught:
        await other_python.invoke(registration)
    assert "ValueError: why" in caught[0].message
    _, result = await other_python.run("outputs", "3")
    assert result.exit_code == 3 and result.outputs == {"b": "x\ny", "a": "2"}


async def test_code_that_dies_by_itself_after_loading_is_started_ever_more_slowly(python: Bench, tmp_path: Any) -> None:
    births = tmp_path / "births"
    await load(
        python,
        f"""
        import os, threading
        open({str(births)!r}, "a").write(".")
        threading.Timer(0.2, os._exit, (1,)).start()  # Loaded by then, also on a machine that is busy.
        def invoke(request): return {{"outputs": {{}}}}
        """,
    )
    await until(lambda: len(births.read_text()) >= 3, "it was started a third time")
    await asyncio.sleep(1.0)  # the fourth is five seconds away
    assert len(births.read_text()) == 3
