# ruff: noqa: ASYNC240
# Looking at files of this machine takes no time worth a thread.
"""Unix sockets in $TMPDIR, whose path must be short wherever the data directory of this machine is."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimes.conformance.dialects import BASH, PYTHON
from runtimes.server.environment import TMPDIR_MAX_BYTES
from tests.conformance.kit import Bench
from tests.runtimes.conftest import BASE_INTERPRETER, base_interpreter, own_server


@pytest.fixture(params=[PYTHON, BASH], ids=lambda dialect: dialect.name)
async def deep(request: pytest.FixtureRequest, short_folder: Path, tmp_path: Path) -> AsyncIterator[Bench]:
    interpreter, short = base_interpreter(request.param), str(short_folder)
    server = own_server(request.param, short_folder, tmp_path, interpreter=interpreter, KRUNTIMES_SHORT_DIR=short)
    async with server as bench:
        yield bench
    assert not [path for path in short_folder.iterdir() if len(path.name) == 6]  # The folder of links went with it.


async def test_sockets_are_made_below_a_temporary_folder_with_a_long_path(deep: Bench) -> None:
    python = """
        import multiprocessing, os
        def invoke(request):
            names = []
            if request:
                try:
                    names = os.listdir(request)
                except PermissionError:
                    names = ["refused"]
            with multiprocessing.get_context("fork").Manager() as manager:
                shared = manager.dict()
                shared["a"] = 1
            with multiprocessing.get_context("forkserver").Pool(1) as pool:
                assert pool.map(abs, [-1]) == [1]
            return {"outputs": {"tmp": os.environ["TMPDIR"], "names": names}}
    """
    bash = f"""
        invoke() {{
            local request names=; request=$(tr -d '"' <"$KRUNTIME_REQUEST_FILE")
            [[ $request == /* ]] && {{ names=$(ls "$request" 2>/dev/null) || names=refused; }}
            {BASE_INTERPRETER} -c 'if True:
                import os, socket
                socket.socket(socket.AF_UNIX).bind(os.environ["TMPDIR"] + "/" + "x" * 30 + str(os.getpid()))' || return
            printf '{{"outputs":{{"tmp":"%s","names":["%s"]}}}}' "$TMPDIR" "$names"
        }}
    """
    files = {"main.py": textwrap.dedent(python), "main.sh": textwrap.dedent(bash)}
    epoch, registration = await deep.register("", epoch=deep.epoch("u" * 100), files=files)
    outputs = (await deep.invoke(registration))["outputs"]
    tmp = Path(outputs["tmp"])
    real = deep.server.folder / "runs" / epoch.run_uid / "1/tmp"
    assert len(str(tmp)) <= TMPDIR_MAX_BYTES < len(str(real))
    assert tmp.is_dir() and tmp.resolve() == real.resolve() and real.stat().st_mode & 0o777 == 0o700
    other, registration = await deep.register("", epoch=deep.epoch("v" * 100), files=files)
    isolation = (await deep.client.hello()).isolation
    if isolation is not None and isolation.level == "sandbox":
        for folder in (tmp, tmp.parent):  # Also by its short path it is nobody else's.
            assert (await deep.invoke(registration, str(folder)))["outputs"]["names"] == ["refused"]
    for one in (epoch, other):
        assert (await deep.unregister(one)).gone
    assert not tmp.is_symlink() and list(tmp.parent.iterdir()) == []


async def test_a_short_temporary_folder_is_named_as_it_is(deep: Bench) -> None:
    python = "import os\ndef invoke(request):\n    return {'outputs': {'tmp': os.environ['TMPDIR']}}\n"
    bash = """invoke() { printf '{"outputs":{"tmp":"%s"}}' "$TMPDIR"; }\n"""
    epoch, registration = await deep.register("", epoch=deep.epoch("short"), files={"main.py": python, "main.sh": bash})
    tmp = (await deep.invoke(registration))["outputs"]["tmp"]
    assert tmp == str(deep.server.folder / "runs" / epoch.run_uid / "1/tmp")
