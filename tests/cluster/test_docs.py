"""Every command of docs/operations, run on the cluster in the order of its page. Blocks marked `sh` are commands."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.fixture import VALUES
from tests.cluster.kit import KUBECONFIG, ROOT, Cluster, scripts_cluster
from tests.kit.helm import find_helm

PAGES: Final = ROOT / "docs" / "operations"
LEAVING_IT: Final = ("installation.md", "sizing.md", "troubleshooting.md", "certificates.md", "upgrade.md")
PAGE_TIMEOUT_S: Final = 420
_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> str:
    """The page as one script, so that what a block sets holds for those below it."""
    blocks = _BLOCK.findall(page.read_text())
    assert blocks, f"{page.name} has no commands"
    return "\n".join(blocks)


def run(page: Path, folder: Path) -> None:
    """Run a page as a reader does: from the top of the checkout, with kubectl, helm and krt on PATH."""
    tools = folder / "tools"
    tools.mkdir()
    helm = find_helm()
    assert helm is not None, "scripts/cluster install has put helm into its cache"
    (tools / "helm").symlink_to(helm)
    (tools / "krt").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m controlplane.cli "$@"\n')
    (tools / "krt").chmod(0o755)
    environ = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "KUBECONFIG": str(KUBECONFIG)}
    environ |= {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    script = "set -euxo pipefail\n" + commands(page)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PAGE_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.fixture(scope="module", autouse=True)
def put_back(cluster: Cluster) -> Iterator[None]:
    """Installs again as the other tests expect it."""
    yield
    scripts_cluster("install", *VALUES)
    cluster.settle()


@pytest.mark.parametrize("name", LEAVING_IT)
def test_every_command_of_the_page_runs(tmp_path: Path, name: str) -> None:
    run(PAGES / name, tmp_path)


def test_uninstalling_by_the_page_leaves_nothing_behind(cluster: Cluster, tmp_path: Path) -> None:
    run(PAGES / "uninstall.md", tmp_path)
    left = cluster.kubectl("get", "all", "--all-namespaces", "-o", "name", check=False)
    assert "kruntimes" not in left
    assert "runtime-" not in left
    assert "kruntimes" not in cluster.kubectl("get", "crd,clusterrole,clusterrolebinding,apiservice", "-o", "name")


def test_every_page_is_run_by_one_of_these_tests() -> None:
    assert {page.name for page in PAGES.glob("*.md")} == {*LEAVING_IT, "uninstall.md"}
