"""A process per call: what `krt --help` and `krt invoke` import, and that they import nothing that is slow."""

import json
import sys
from pathlib import Path

import pytest

from tests.apiserver.harness import run as a_run
from tests.cli.stage import Gateway, Kubernetes, process

HEAVY = (
    "kubernetes_asyncio",
    "aiohttp",
    "pydantic",
    "rich",
    "asyncio",
    "cryptography",
    "yaml",
    "transitions",
    "uvloop",
)
REPORT = "import sys, json; from controlplane.cli.main import main; code = main(sys.argv[1:]); print(); " + (
    "print(json.dumps([code, sorted({name.partition('.')[0] for name in sys.modules})]))"
)


def imported(*args: str, **environ: str) -> tuple[int, set[str]]:
    done = process(*args, code=REPORT, environ=environ)
    code, names = json.loads(done.stdout.splitlines()[-1])
    return code, set(names)


@pytest.mark.parametrize("args", [("--help",), ("invoke", "--help"), ("list", "--frob"), ("frob",)], ids=str)
def test_help_and_wrong_usage_import_nothing_slow(args: tuple[str, ...]) -> None:
    code, names = imported(*args)
    assert code in (0, 2)
    assert not names & (set(HEAVY) - ({"asyncio", "transitions"} if args[0] == "list" else set()))


def test_invoke_imports_nothing_slow(kubernetes: Kubernetes, gateway: Gateway, tmp_path: Path) -> None:
    made = kubernetes.put(a_run("hello"))
    kubernetes.set_status("hello", {"phase": "Ready", "endpoint": gateway.endpoint(made["metadata"]["uid"])})
    config = str(kubernetes.kubeconfig(tmp_path / "config"))
    code, names = imported("invoke", "hello", "-d", '{"a": 1}', "--timeout", "5s", "-n", "default", KUBECONFIG=config)
    assert (code, names & set(HEAVY)) == (0, set())
    assert len(gateway.calls) == 1


def test_the_entry_point_itself_imports_nothing_of_ours() -> None:
    done = process(code="import sys, controlplane.cli.main; print(sorted(m for m in sys.modules if 'typer' in m))")
    assert done.stdout.strip() == b"[]"
    assert sys.version_info >= (3, 11)
