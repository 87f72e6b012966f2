"""deploy/kind/up.sh with stand-ins for docker, kind and helm that note what they are asked: same images, same chart.

A real kind needs a Docker engine; what it would be told is judged here, and its values are rendered by a real Helm.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.deploy.test_images import IMAGES
from tests.kit.helm import find_helm

ROOT = Path(__file__).parents[2]
STAND_IN = (
    f"#!{sys.executable}\n"
    + """import json, os, sys
name = os.path.basename(sys.argv[0])
with open(os.environ["ASKED"], "a") as asked:
    asked.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
if sys.argv[1:3] == ["image", "inspect"]:
    print("sha256:" + sys.argv[-1].rpartition("/")[2].partition(":")[0])
"""
)


def up(
    folder: Path, *arguments: str, tools: tuple[str, ...] = ("docker", "kind", "helm")
) -> tuple[int, str, list[list[str]]]:
    """Exit status, standard error, and what the stand-ins were asked."""
    bin_ = folder / "bin"
    bin_.mkdir()
    for tool in tools:
        (bin_ / tool).write_text(STAND_IN)
        (bin_ / tool).chmod(0o755)
    for tool in ("bash", "dirname", "sed", "grep", "env"):
        found = next(Path(part) / tool for part in os.environ["PATH"].split(":") if (Path(part) / tool).exists())
        (bin_ / tool).symlink_to(found)
    asked = folder / "asked"
    asked.touch()
    environ = {"PATH": str(bin_), "ASKED": str(asked), "HOME": str(folder)}
    command = [str(ROOT / "deploy" / "kind" / "up.sh"), *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stderr, [json.loads(line) for line in asked.read_text().splitlines()]


def test_it_makes_a_cluster_and_gives_it_every_image(tmp_path: Path) -> None:
    code, errors, asked = up(tmp_path)
    assert code == 0, errors
    created = next(one for one in asked if one[:3] == ["kind", "create", "cluster"])
    config = yaml.safe_load((ROOT / created[created.index("--config") + 1]).read_text())
    assert (config["kind"], config["name"]) == ("Cluster", "kruntimes")
    version = yaml.safe_load((ROOT / "deploy/chart/Chart.yaml").read_text())["appVersion"]
    wanted = [f"docker.io/kruntimes/{image}:{version}" for image in IMAGES]
    built = [one for one in asked if one[:2] == ["docker", "build"]]
    assert [one[one.index("--tag") + 1] for one in built] == wanted
    assert all((ROOT / one[one.index("--file") + 1]).is_file() for one in built)
    assert [one[-1] for one in asked if one[:3] == ["kind", "load", "docker-image"]] == wanted


def test_the_chart_takes_the_values_that_it_is_given(tmp_path: Path) -> None:
    helm = find_helm()
    if helm is None:
        pytest.skip("helm is neither on the PATH nor in the cache of scripts/cluster")
    _, _, asked = up(tmp_path, "--set", "gateway.replicas=1")
    call = next(one for one in asked if one[0] == "helm")
    values = [part for flag, value in itertools.pairwise(call) if flag.startswith("--set") for part in (flag, value)]
    assert "gateway.replicas=1" in values
    command = [helm, "template", "kruntimes", str(ROOT / "deploy/chart"), "--namespace", "kruntimes-system", *values]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    marks = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["annotations"]["built"]
        for one in objects
        if one["kind"] == "Deployment" or one["kind"] == "Runtime"
    }
    assert marks["runtime-gateway"] == "sha256:gateway"
    assert marks["python"] == "runtimedpython-runtimebash-runtime"


def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    code, errors, asked = up(tmp_path, tools=("docker", "helm"))
    assert (code, asked) == (1, [])
    assert "needs kind" in errors


def test_down_removes_that_cluster(tmp_path: Path) -> None:
    code, _, asked = up(tmp_path, "--down")
    assert code == 0
    assert asked == [["kind", "delete", "cluster", "--name", "kruntimes"]]
