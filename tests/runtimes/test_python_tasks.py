"""A Python task does what `python FILE ARGS` does: the same script is run both ways and compared."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from runtimes.contract import messages as m
from tests.conformance.kit import Bench, failing

SCRIPTS = {
    "the seed's example": ("import sys\nprint('hello', sys.argv)\n", ["--verbose"]),
    "its name": ("print(__name__, __doc__, __file__.endswith('/main.py'), __spec__, __package__)\n", []),
    "its module": ("import __main__, sys\nx = 1\nprint(__main__.x, sys.modules['__main__'] is __main__)\n", []),
    "its path": ("import sys, os\nprint(sys.path[0] == os.getcwd(), os.getcwd().endswith('src'))\n", []),
    "exit with a number": ("import sys; sys.exit(5)\n", []),
    "exit with a large number": ("import sys; sys.exit(259)\n", []),
    "exit with a negative number": ("import sys; sys.exit(-1)\n", []),
    "exit with text": ("import sys; sys.exit('a message')\n", []),
    "exit with None": ("import sys; sys.exit()\n", []),
    "exit with True": ("import sys; sys.exit(True)\n", []),
    "an exception": ("def f():\n    1/0\nf()\n", []),
    "a chained exception": ("try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise ValueError('x') from e\n", []),
    "a syntax error": ("x = (\n", []),
    "an import that fails": ("import no_such_module\n", []),
    "an exception's own hook": ("import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1/0\n", []),
    "atexit": ("import atexit, sys\natexit.register(print, 'bye')\nprint('hi')\nsys.exit(3)\n", []),
    "a failing atexit": ("import atexit\natexit.register(lambda: 1/0)\natexit.register(print, 'bye')\n", []),
    "a thread that is waited for": (
        "import threading, time\ndef f():\n    time.sleep(0.05)\n"
        "    print('thread done')\nthreading.Thread(target=f).start()\nprint('main done')\n",
        [],
    ),
    "a daemon thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
        [],
    ),
    "a file never closed": ("f = open('out.txt', 'w')\nf.write('x' * 10000)\n", []),
    "a cyclic object's end": (
        "class A:\n    def __del__(self): print('del', self.n)\na = A(); a.n = 1; a.me = a\nb = A(); b.n = 2\n",
        [],
    ),
    "print without newline": ("import sys\nprint('x', end='')\nsys.stderr.write('y')\n", []),
    "os._exit": ("import os\nprint('printed', flush=True)\nos._exit(9)\n", []),
    "killed": ("import os\nos.kill(os.getpid(), 9)\n", []),
    "stdin": ("import sys\nprint(repr(sys.stdin.read()))\n", []),
    "arguments of all kinds": ("import sys\nprint(sys.argv[1:])\n", ["a b", "", "-x", "ü", "\n", "*", "--", "$HOME"]),
    "futures": ("from __future__ import annotations\nx: undefined = 1\nprint(__annotations__)\n", []),
    "no futures of ours": ("def f(x: int): pass\nprint(f.__annotations__)\n", []),
    "a module beside it": ("import helper\nprint(helper.X)\n", []),
    "a warm name beside it": ("import struct, inspect\nprint(inspect.X, hasattr(struct, 'pack'))\n", []),
    "asyncio": (
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 3\nprint(asyncio.run(f()))\n",
        [],
    ),
    "subprocess": (
        "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True).stdout)\n",
        [],
    ),
    "spawn": (
        "import multiprocessing as mp\ndef f(x): return x * 2\nif __name__ == '__main__':\n"
        "    with mp.get_context('spawn').Pool(1) as p:\n        print(p.map(f, [1, 2]))\n",
        [],
    ),
    "fork that ends": (
        "import os\nif os.fork() == 0:\n    print('child', flush=True)\nelse:\n    os.wait()\n    print('parent')\n",
        [],
    ),
    "pickle of main": ("import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)\n", []),
    "dataclass in main": (
        "import dataclasses, typing\n@dataclasses.dataclass\nclass A:\n"
        "    x: int = 1\nprint(A(), typing.get_type_hints(A))\n",
        [],
    ),
    "encoding": ("# -*- coding: latin-1 -*-\nprint('\xe4')\n", []),
    "recursion": ("def f(): f()\ntry:\n    f()\nexcept RecursionError:\n    print('ok')\n", []),
}
FILES = {"helper.py": "X = 5\n", "inspect.py": "X = 6\n"}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_task_does_what_python_does(python: Bench, tmp_path: Path, name: str) -> None:
    source, args = SCRIPTS[name]
    files = {"main.py": source} | FILES
    encoded = source.encode("latin-1" if "latin-1" in source else "utf-8")
    reference_folder = tmp_path / "src"
    reference_folder.mkdir()
    for file, text in FILES.items():
        (reference_folder / file).write_text(text)
    (reference_folder / "main.py").write_bytes(encoded)
    reference = run_python(python.server.interpreter, reference_folder, args)
    epoch = python.epoch()
    head = python.task("", *args, files=files, epoch=epoch)
    (Path(head.directory) / "main.py").write_bytes(encoded)
    await python.client.execute_task(head)
    result = await python.result(epoch)
    code = reference.returncode if reference.returncode >= 0 else 128 - reference.returncode
    assert result.exit_code == code, result
    log = python.log(epoch.run_uid)
    for stream, printed in (("stdout", reference.stdout), ("stderr", reference.stderr)):
        expected = plain(printed.decode().replace(str(reference_folder), head.directory))
        assert plain("\n".join(entry["line"] for entry in log if entry["stream"] == stream)) == expected
    for produced in reference_folder.glob("*.txt"):
        assert (Path(head.directory) / produced.name).read_bytes() == produced.read_bytes()


def run_python(interpreter: str, folder: Path, args: list[str]) -> subprocess.CompletedProcess[bytes]:
    """`python main.py ARGS` in the folder."""
    command = [interpreter, "-X", "utf8", "main.py", *args]
    env = {"PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, env=env)


def plain(text: str) -> str:
    """Without what differs from process to process: addresses, the last newline."""
    return re.sub(r"0x[0-9a-f]+", "0x", text).rstrip("\n")


async def test_an_entrypoint_in_a_folder_has_its_folder_first_and_the_root_after_it(python: Bench) -> None:
    source = "import sys, os\nimport near, far\nprint(near.X, far.X, sys.argv[0])\n"
    files = {"tools/task.py": source, "tools/near.py": "X = 1\n", "far.py": "X = 2\n"}
    head = python.task("", "x", files=files, entrypoint="tools/task.py")
    await python.client.execute_task(head)
    assert (await python.result(head.epoch)).exit_code == 0
    assert [entry["line"] for entry in python.log(head.epoch.run_uid)] == ["1 2 tools/task.py"]


async def test_the_environment_of_a_task_is_its_own(python: Bench) -> None:
    source = textwrap.dedent("""
        import os, time
        print(os.environ["MINE"], os.environ["PATH"], os.path.isdir(os.environ["HOME"]), time.tzname[0])
        print("SECRET_OF_THE_SERVER" in os.environ)
        open(os.path.join(os.environ["TMPDIR"], "x"), "w").close()
    """)
    head = python.task(
        "", files={"main.py": source}, env={"MINE": "m", "PATH": "/bin", "TZ": "Asia/Tokyo", "PYTHONPATH": "lib"}
    )
    await python.client.execute_task(head)
    await python.result(head.epoch)
    lines = [entry["line"] for entry in python.log(head.epoch.run_uid)]
    assert lines[0].startswith("m /bin True") and lines[1] == "False"


async def test_pythonpath_of_the_run_counts(python: Bench) -> None:
    files = {"main.py": "import inner\nprint(inner.X)\n", "lib/inner.py": "X = 4\n"}
    head = python.task("", files=files, env={"PYTHONPATH": "lib"})
    await python.client.execute_task(head)
    await python.result(head.epoch)
    assert [entry["line"] for entry in python.log(head.epoch.run_uid)] == ["4"]


async def test_arguments_and_environment_of_the_largest_size_arrive(python: Bench) -> None:
    args = ["a" * 65_000, "b" * 65_000]
    env = {f"V{i}": "x" * 30_000 for i in range(6)}
    source = "import os, sys\nprint([len(a) for a in sys.argv[1:]], sum(len(os.environ[f'V{i}']) for i in range(6)))\n"
    head = python.task("", *args, files={"main.py": source}, env=env)
    await python.client.execute_task(head)
    await python.result(head.epoch)
    assert [entry["line"] for entry in python.log(head.epoch.run_uid)] == ["[65000, 65000] 180000"]


async def test_a_cancelled_task_that_has_not_started_yet_never_does(python: Bench) -> None:
    heads = [python.task("", files={"main.py": "import time\ntime.sleep(60)\n"}) for _ in range(10)]
    for head in heads:  # More than are warm.
        await python.client.execute_task(head)
    for head in heads:
        await python.client.cancel_task(m.CancelTaskRequest(epoch=head.epoch, grace_ms=5000, wait_ms=0))
    for head in heads:
        assert (await python.result(head.epoch)).exit_code == 143
    async with failing("FailedPrecondition"):
        await python.client.execute_task(heads[0])
