"""What the kernel is asked for: no core file, no reader of the same user, enough descriptors."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))
from dataplane.wire.hardening import harden
harden()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.fixture
def program(tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_crash_leaves_no_core_file_and_many_descriptors_are_had(
    program: subprocess.Popen[str], tmp_path: Path
) -> None:
    with program:
        assert program.stdout is not None
        assert int(program.stdout.readline()) == min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        program.communicate("", timeout=20)
    assert program.returncode == -signal.SIGSEGV
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_process_of_the_same_user_reads_nothing_of_it(tmp_path: Path) -> None:
    """A function on one machine may run as the user of the gateway, whose memory has callers' tokens."""
    nobody = 65534

    def become() -> None:
        os.setresgid(nobody, nobody, nobody)
        os.setresuid(nobody, nobody, nobody)

    source = Path(__file__).parents[2] / "dataplane" / "wire" / "hardening.py"
    victim = f"import sys\nexec({source.read_text()!r})\nharden()\nprint(flush=True)\nsys.stdin.read()\n"
    reader = "import sys; open(f'/proc/{sys.argv[1]}/environ', 'rb').read(); open(f'/proc/{sys.argv[1]}/mem', 'rb')"
    python = Path("/usr/bin/python3")
    if not python.exists():
        pytest.skip("no interpreter that every user may run")
    for hidden in (False, True):
        text = victim if hidden else victim.replace("\nharden()", "")
        with subprocess.Popen(
            [python, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=become, cwd="/"
        ) as program:
            assert program.stdout is not None
            program.stdout.readline()
            read = subprocess.run(
                [python, "-c", reader, str(program.pid)], preexec_fn=become, cwd="/", capture_output=True, check=False
            )
            program.communicate(b"", timeout=20)
        assert (read.returncode != 0) is hidden, read.stderr
