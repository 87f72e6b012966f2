# ruff: noqa: ASYNC240
# Looking at files of this machine takes no time worth a thread.
"""One function attacks another, and the product: what the kernel refuses it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import textwrap
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runtimes.conformance.dialects import BASH, PYTHON
from tests.conformance.kit import ROOT, Bench, alive
from tests.runtimes.conftest import BASE_INTERPRETER, base_interpreter, own_server

VICTIM = """
    import os
    for name in ("HOME", "TMPDIR"):
        with open(os.environ[name] + "/private", "w") as file:
            file.write("secret")
    def invoke(request):
        names = ("HOME", "TMPDIR")
        folders = [os.getcwd(), *map(os.environ.get, names)]
        return {"outputs": {"pid": os.getpid(), "zygote": os.getppid(), "folders": folders}}
"""
ATTACKER = """
    import ctypes, os, pathlib, shutil, socket, subprocess
    def tried(name, attempt):
        try:
            found = attempt()
        except (OSError, subprocess.CalledProcessError) as error:
            return None
        return f"{name}: {found!r}"[:200]
    def read(path):
        with open(path, "rb") as file:
            return file.read(100)
    def write(path):
        with open(path, "ab") as file:
            return file.write(b"x")
    def shell(path):
        return subprocess.run(["cat", path], check=True, capture_output=True).stdout[:100]
    def memory(pid):
        buffer = ctypes.create_string_buffer(8)
        vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
        remote = (ctypes.c_void_p * 2)(id(object), 8)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.process_vm_readv(pid, vector, 1, remote, 1, 0) < 0:
            raise OSError(ctypes.get_errno(), "process_vm_readv")
        return "its memory"
    def invoke(request):
        got = []
        for path in request["files"]:
            taken = (lambda p: os.link(p, "linked"), lambda p: os.rename(p, "moved"))
            for way in (read, write, shell, os.unlink, os.readlink, *taken):
                got.append(tried(f"{way.__name__} {path}", lambda: way(path)))
            os.path.lexists("by-link") and os.unlink("by-link")
            os.symlink(path, "by-link")
            got.append(tried(f"symlink {path}", lambda: read("by-link")))
        for folder in request["folders"]:
            for way in (os.listdir, shutil.rmtree, lambda f: write(f + "/new"), lambda f: os.mkdir(f + "/new")):
                got.append(tried(f"{way.__name__} {folder}", lambda: way(folder)))
        for pid in request["pids"]:
            for name in ("environ", "mem", "maps", "fd/1", "cwd/main.py", "root/etc/passwd", "exe"):
                got.append(tried(name, lambda: read(f"/proc/{pid}/{name}")))
            got.append(tried("readlink cwd", lambda: os.readlink(f"/proc/{pid}/cwd")))
            got.append(tried("memory", lambda: memory(pid)))
        for number in request["signals"]:
            got.append(tried("kill", lambda: os.kill(number, 0)))
            got.append(tried("killpg", lambda: os.killpg(number, 0)))
        return {"outputs": {"got": [one for one in got if one]}}
"""
CALLER = """
    import os, socket
    FRAME = "0000001D 01 0000000000000001 00001388 00000008 00000000 92A5416C69766580".replace(" ", "")
    def ask(path):
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(path)
                connection.settimeout(5)
                connection.sendall(bytes.fromhex(FRAME))
                return connection.recv(1000).hex()
            except OSError as error:
                return ""
    def invoke(request):
        answers = [ask(request)]
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while os.getppid() == os.getpgrp():
                    pass
                os.write(writer, ask(request).encode() + b".")
            os._exit(0)
        os.wait()
        answers.append(os.read(reader, 1000).decode())
        return {"outputs": {"answers": answers}}
"""


@pytest.fixture(params=[PYTHON, BASH], ids=lambda dialect: dialect.name)
async def guarded(request: pytest.FixtureRequest, short_folder: Path, tmp_path: Path) -> AsyncIterator[Bench]:
    """A server that is told of a folder with tokens, as the node tells it of the data directory."""
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    (tokens / "admin").write_text("token")
    interpreter = base_interpreter(request.param)
    server = own_server(request.param, short_folder, tmp_path, interpreter=interpreter, KRUNTIMES_HIDDEN=str(tokens))
    async with server as bench:
        isolation = (await bench.client.hello()).isolation
        assert isolation is not None
        if isolation.landlock_abi < 6:
            pytest.skip("this kernel has no Landlock, or an older one")
        yield bench


async def load(bench: Bench, source: str, **more: Any) -> str:
    return (await bench.register("", files={"main.py": textwrap.dedent(source)}, **more))[1]


async def test_a_function_reaches_nothing_of_another_nor_of_the_product(guarded: Bench) -> None:
    if guarded.dialect is BASH:
        await bash_reaches_nothing(guarded)
        return
    victim = await load(guarded, VICTIM, env={"SECRET": "of the victim"})
    facts = (await guarded.invoke(victim))["outputs"]
    work = guarded.server.folder
    files = [folder + "/private" for folder in facts["folders"][1:]] + [facts["folders"][0] + "/main.py"]
    files += [str(guarded.tmp / "tokens/admin"), str(work / "server.log")]
    files += [str(ROOT / "runtimes/python/zygote.py"), str(ROOT / "runtimes/python/sandbox.py")]
    attack = {
        "files": files,
        "folders": [*facts["folders"], str(work), str(work / "logs"), str(work / "runs"), str(ROOT / "runtimes")],
        "pids": [facts["pid"], facts["zygote"], guarded.server.pid, os.getpid()],
        "signals": [facts["pid"], facts["zygote"], guarded.server.pid, os.getpid()],
    }
    attacker = await load(guarded, ATTACKER)
    assert (await guarded.invoke(attacker, attack))["outputs"]["got"] == []
    assert (await guarded.invoke(victim))["outputs"] == facts
    assert all(Path(path).exists() for path in files)


async def bash_reaches_nothing(guarded: Bench) -> None:
    victim = 'echo secret > "$HOME/private"\ninvoke() { printf "home=$HOME\\npid=$$\\n" > "$KRUNTIME_OUTPUTS"; }\n'
    _, registration = await guarded.register("", files={"main.sh": victim}, env={"SECRET": "of the victim"})
    facts = (await guarded.invoke(registration))["outputs"]
    source = Path(facts["home"]).parent / "src/main.sh"
    attacker = f"""
        invoke() {{
          for path in {facts["home"]}/private {source} {guarded.tmp}/tokens/admin /proc/{facts["pid"]}/environ \\
              /proc/$PPID/environ {guarded.server.folder}/server.log {ROOT}/runtimes/python/zygote.py; do
            if cat "$path" >/dev/null 2>&1; then echo "$path=read" >> "$KRUNTIME_OUTPUTS"; fi
          done
          for pid in {facts["pid"]} $PPID {guarded.server.pid}; do
            if kill -0 "$pid" 2>/dev/null; then echo "$pid=signalled" >> "$KRUNTIME_OUTPUTS"; fi
          done
          echo "end=1" >> "$KRUNTIME_OUTPUTS"
        }}
    """
    _, registration = await guarded.register("", files={"main.sh": textwrap.dedent(attacker)})
    assert await guarded.invoke(registration) == {"outputs": {"end": "1"}}


async def test_user_code_that_dials_the_runtime_server_is_hung_up_on(python: Bench) -> None:
    # Also without Landlock, and from a process that has left its group: it is known by its ancestors.
    registration = await load(python, CALLER)
    answers = (await python.invoke(registration, str(python.server.socket)))["outputs"]["answers"]
    assert answers == ["", "."]
    await python.client.alive()


PROGRAM = """
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(5)
    try:
        connection.connect(sys.argv[1])
        connection.sendall(bytes.fromhex("0000001D01000000000000000100001388000000080000000092A5416C69766580"))
        print("answer", connection.recv(1000).hex(), end="")
    except OSError:
        print("answer", end="")
"""


async def test_user_code_of_one_runtime_server_is_hung_up_on_by_another(python: Bench, bash: Bench) -> None:
    # Its ancestors are not the other server's; what it cannot get rid of is that it may gain no privilege.
    answers = (await python.invoke(await load(python, CALLER), str(bash.server.socket)))["outputs"]["answers"]
    assert answers == ["", "."]
    started = f"""
        import subprocess, sys
        PROGRAM = {PROGRAM!r}
        def invoke(request):
            ask = [sys.executable, "-c", PROGRAM, request]
            shells = [ask, ["setsid", "--fork", "--wait", *ask], ["sh", "-c", '"$@" & wait', "sh", *ask]]
            return {{"outputs": {{"said": [subprocess.check_output(one, text=True) for one in shells]}}}}
    """
    registration = await load(python, started)
    assert (await python.invoke(registration, str(bash.server.socket)))["outputs"]["said"] == ["answer"] * 3
    # The other way round, by a program that a shell has become.
    script = f"""invoke() {{
        local said; said=$({BASE_INTERPRETER} -c '{PROGRAM}' {python.server.socket})
        printf '{{"outputs":{{"said":"%s"}}}}' "$said"
    }}"""
    _, registration = await bash.register("", files={"main.sh": script})
    assert await bash.invoke(registration) == {"outputs": {"said": "answer"}}
    said = await asyncio.to_thread(
        subprocess.check_output, [sys.executable, "-c", PROGRAM, str(bash.server.socket)], text=True
    )
    assert said.startswith("answer 0000")  # The same program, started by nobody's user code, is answered.
    for bench in (python, bash):
        await bench.client.alive()


async def test_no_socket_without_a_path_can_be_reached(python: Bench) -> None:
    isolation = (await python.client.hello()).isolation
    if isolation is None or isolation.landlock_abi < 6:
        pytest.skip("abstract sockets are scoped from Landlock 6 on")
    name = "kr-" + uuid.uuid4().hex
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()
        source = """
            import socket
            def invoke(request):
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect("\\0" + request)
                return {}
        """
        with pytest.raises(Exception, match="PermissionError"):
            await python.invoke(await load(python, source), name)


async def test_workers_have_no_privilege_and_cannot_gain_one(python: Bench) -> None:
    source = """
        import subprocess
        def invoke(request):
            own = open("/proc/self/status").read()
            below = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
            names = ("CapEff", "CapPrm", "CapAmb", "NoNewPrivs")
            fields = lambda text: [line.split()[1] for line in text.splitlines() if line.split(":")[0] in names]
            return {"outputs": {"own": fields(own), "below": fields(below)}}
    """
    facts = (await python.invoke(await load(python, source)))["outputs"]
    assert facts["own"] == facts["below"] == ["0" * 16, "0" * 16, "0" * 16, "1"]


async def test_the_system_is_read_and_not_written(python: Bench) -> None:
    source = """
        import os, sys, tempfile, multiprocessing
        def refused(path):
            try:
                open(path, "a").close()
            except OSError:
                return True
        def invoke(request):
            with tempfile.NamedTemporaryFile() as file:
                file.write(b"x")
            open("beside", "w").close()
            open(os.environ["HOME"] + "/file", "w").close()
            os.rename("beside", os.environ["TMPDIR"] + "/moved")
            with open("/dev/null", "w") as null, open("/dev/urandom", "rb") as random:
                null.write(str(random.read(1)))
            multiprocessing.Lock()
            system = ("/etc/new", "/usr/new", "/proc/sys/kernel/core_pattern", sys.prefix + "/new", os.__file__)
            return {"outputs": {"etc": len(os.listdir("/etc")) > 0, "refused": [refused(path) for path in system]}}
    """
    facts = (await python.invoke(await load(python, source)))["outputs"]
    assert facts == {"etc": True, "refused": [True] * 5}


async def test_a_worker_of_the_same_function_shares_its_folders(python: Bench) -> None:
    source = """
        import os, time
        def invoke(request):
            open(f"{os.environ['TMPDIR']}/{os.getpid()}", "w").close()
            time.sleep(0.2)
            return {"outputs": {"seen": len(os.listdir(os.environ["TMPDIR"]))}}
    """
    registration = await load(python, source, concurrency=2)
    answers = await asyncio.gather(*(python.invoke(registration) for _ in range(2)))
    assert max(answer["outputs"]["seen"] for answer in answers) == 2


async def test_the_server_itself_cannot_be_looked_into(python: Bench) -> None:
    assert alive(python.server.pid)
    # The kernel gives the files of a process that is not dumpable to root, whoever runs it.
    for name in ("environ", "mem", "maps"):
        assert Path(f"/proc/{python.server.pid}/{name}").stat().st_uid == 0
