# ruff: noqa: ASYNC221, ASYNC240
# Looking at files of this machine takes no time worth a thread.
"""The user's interpreter and virtual environment, with what is installed there and nothing of ours."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import textwrap
from pathlib import Path

import pytest

from tests.conformance.dialects import PYTHON
from tests.conformance.kit import Bench, RuntimeProcess
from tests.runtimes.conftest import BASE_INTERPRETER, OTHER_INTERPRETERS

SOURCE = """
    import baked, shadowed, sys
    def invoke(request):
        try:
            import msgspec
            ours = True
        except ImportError:
            ours = False
        import compiled_late
        return {"outputs": {"baked": baked.VALUE, "late": compiled_late.VALUE, "shadowed": shadowed.VALUE, "ours": ours,
                            "prefix": sys.prefix, "first": sys.path[0]}}
"""


@pytest.mark.parametrize("interpreter", [Path(BASE_INTERPRETER), *OTHER_INTERPRETERS], ids=str)
async def test_what_is_baked_into_an_environment_is_there_and_the_source_comes_first(
    tmp_path: Path, interpreter: Path
) -> None:
    if not interpreter.exists():
        pytest.skip(f"{interpreter} is not on this machine")
    folder = Path(tempfile.mkdtemp(prefix="kr-"))
    subprocess.run([interpreter, "-m", "venv", "--without-pip", "--symlinks", folder / "env"], check=True, timeout=60)
    [packages] = (folder / "env").glob("lib/python3.*/site-packages")
    for name in ("baked", "shadowed", "compiled_late"):
        (packages / f"{name}.py").write_text("VALUE = 'installed'\n")
    work = folder / "work"
    work.mkdir()
    server = RuntimeProcess(PYTHON, work, str(folder / "env/bin/python"))
    server.start()
    client = await server.connect()
    bench = Bench(client, server, tmp_path)
    files = {"main.py": textwrap.dedent(SOURCE), "shadowed.py": "VALUE = 'of the source'\n"}
    _, registration = await bench.register("", files=files)
    found = (await bench.invoke(registration))["outputs"]
    source = Path(found.pop("first"))
    assert (source / "main.py").samefile(next(work.glob("runs/*/1/src/main.py")))
    assert found == {
        "baked": "installed",
        "late": "installed",
        "shadowed": "of the source",
        "ours": False,
        "prefix": str(folder / "env"),
    }
    client.close()
    await client.connection.closed
    assert server.stop() == 0
    shutil.rmtree(folder)
