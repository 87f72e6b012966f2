"""A Runtime chooses an interpreter and an environment for its Runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import Stack, function, names, task
from tests.e2e.test_seed_cases import make

NAME = names()
SOURCE = (
    "import baked, sys\ndef invoke(request):\n    return {'outputs': {'value': baked.VALUE, 'prefix': sys.prefix}}\n"
)


@pytest.mark.embedded
def test_functions_and_tasks_run_in_the_environment_of_their_runtime(stack: Stack, tmp_path: Path) -> None:
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=60)
    [packages] = environment.glob("lib/python3.*/site-packages")
    (packages / "baked.py").write_text("VALUE = 'installed'\n")
    runtime = stack.runtime("science")
    [container] = runtime["spec"]["template"]["spec"]["containers"]
    container["env"] = [{"name": "KRUNTIMES_INTERPRETER", "value": str(environment / "bin/python")}]
    assert stack.kubectl("apply", "-f", "-", stdin=json.dumps(runtime)).code == 0
    name = next(NAME)
    make(stack, function(name, SOURCE, runtime="science"))
    found = stack.krt("invoke", name).json["outputs"]
    assert found == {"value": "installed", "prefix": str(environment)}
    other = next(NAME)
    run = make(stack, task(other, "import baked\nprint(baked.VALUE)\n", runtime="science"))
    assert run["status"]["phase"] == "Succeeded"
    assert stack.krt("logs", other).out == "installed\n"
    for one in (name, other):
        assert stack.krt("delete", one).code == 0
    assert stack.kubectl("delete", "runtime", "science").code == 0
