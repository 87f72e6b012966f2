"""What is in an image: read from its Dockerfile, laid out in a folder, and imported there."""

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = ("controlplane", "gateway", "runtimed", "python-runtime", "bash-runtime")
RUNTIMES = ("python-runtime", "bash-runtime")
COPY = re.compile(r"^COPY (?!--)(\S+) (\S+)$", re.MULTILINE)
ENTRY = re.compile(r'^ENTRYPOINT \["tini", "--", "python3", "-m", "(\S+)"\]$', re.MULTILINE)
PINNED = re.compile(r"^([a-z0-9][-a-z0-9.]*)==", re.MULTILINE)
LIBRARY = "/opt/kruntimes"


def dockerfile(image: str) -> str:
    return (ROOT / "deploy" / "images" / image / "Dockerfile").read_text()


def lay_out(image: str, folder: Path) -> None:
    """Copy what the Dockerfile copies, as it does."""
    for source, target in COPY.findall(dockerfile(image)):
        if not target.startswith(LIBRARY):
            continue
        place = folder / target.removeprefix(LIBRARY).strip("/")
        found = sorted(ROOT.glob(source))
        assert found, f"{source} names nothing"
        for path in found:
            if path.is_dir():
                shutil.copytree(path, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place / path.name)


def pinned(image: str) -> set[str]:
    return set(PINNED.findall((ROOT / "deploy" / "images" / image / "requirements.lock").read_text()))


BLOCK = """
import importlib.metadata, sys
sys.path.append(sys.argv[1])
pinned = set(sys.argv[3:])
allowed = set()
for name, owners in importlib.metadata.packages_distributions().items():
    if pinned & {owner.lower().replace("_", "-") for owner in owners}:
        allowed.add(name)
    else:
        sys.modules[name] = None  # importing it says ModuleNotFoundError
sys.path.insert(0, sys.argv[2])
for name in ("statemachine", "controlplane", "dataplane", "runtimes"):
    sys.modules.pop(name, None)
"""


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_every_module_and_package_that_its_process_imports(image: str, tmp_path: Path) -> None:
    lay_out(image, tmp_path)
    (entry,) = ENTRY.findall(dockerfile(image))
    code = BLOCK + f"import {entry}.main\n"
    if (tmp_path / "controlplane").exists():
        code += "from controlplane.kube import library; library.pieces()\n"
    if image == "runtimed":
        code += "import obstore.store\n"  # only where a Runtime has an artifact store
    packages = sysconfig.get_path("purelib")
    command = [sys.executable, "-I", "-S", "-c", code, packages, str(tmp_path), *sorted(pinned(image))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("image", RUNTIMES)
def test_a_runtime_image_carries_neither_control_plane_nor_data_plane(image: str, tmp_path: Path) -> None:
    lay_out(image, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"runtimes"}
    assert pinned(image) == {"msgspec", "uvloop"}


@pytest.mark.parametrize(
    ("image", "absent"), [("controlplane", ("embedded", "cli")), ("gateway", ("pki", "scheduler"))]
)
def test_an_image_carries_only_the_parts_of_its_process(image: str, absent: tuple[str, ...], tmp_path: Path) -> None:
    lay_out(image, tmp_path)
    assert not [part for part in absent if (tmp_path / "controlplane" / part).exists()]
    assert ((tmp_path / "dataplane").exists()) is (image != "controlplane")


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_nobody_in_particular_from_a_base_that_can_be_chosen(image: str) -> None:
    text = dockerfile(image)
    assert "ARG BASE=" in text
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}
    assert re.search(r"^USER 65532:65532$", text, re.MULTILINE)
    assert "--require-hashes" in text


def test_only_runtimed_has_git() -> None:
    assert [image for image in IMAGES if re.search(r"apt-get install .*\bgit\b", dockerfile(image))] == ["runtimed"]
