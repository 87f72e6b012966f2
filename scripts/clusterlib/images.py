"""Images without a registry: a base from Debian's packages, ours on top by buildah, both kept as archives in the cache.

`build` makes what is stale: an image's archive is named by a digest of everything that goes into it. `load` hands
archives to the node's containerd.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from clusterlib import packages
from clusterlib.namespaces import run
from clusterlib.processes import polls
from clusterlib.settings import (
    BASE_IMAGE,
    BASE_SUITE,
    CACHE,
    CONTAINERD_SOCKET,
    IMAGE_PREFIX,
    IMAGES,
    PAUSE_IMAGE,
    ROOT,
    STATE,
    ClusterError,
)

FOLDER: Final = ROOT / "deploy" / "images"
ARCHIVES: Final = CACHE / "images"
STORAGE: Final = CACHE / "buildah"
DRIVER: Final = os.environ.get("STORAGE_DRIVER") or "overlay"  # "vfs" where overlays cannot be stacked, much slower
BASE_PACKAGES: Final = "python3,ca-certificates"
CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
SERVED_TIMEOUT_S: Final = 20.0

_COPIED: Final = re.compile(r"^COPY (?!--)(\S+) ", re.MULTILINE)

_PAUSE: Final = """
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void stop(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) {
    signal(SIGTERM, stop); signal(SIGINT, stop); signal(SIGCHLD, reap);
    for (;;) pause();
}
"""


def version() -> str:
    """The tag of our images: the chart's appVersion."""
    chart = (ROOT / "deploy" / "chart" / "Chart.yaml").read_text().splitlines()
    return next(line.partition(":")[2].strip().strip('"') for line in chart if line.startswith("appVersion:"))


def reference(name: str) -> str:
    """The full name of one of our images."""
    return f"{IMAGE_PREFIX}/{name}:{version()}"


def archive(name: str) -> Path:
    """Where the image, as the tree stands now, is or will be."""
    return ARCHIVES / f"{name}-{digest(name)}.tar"


def build(*names: str) -> list[Path]:
    """Build what has no archive yet; the archives of all that were asked for (default: every image of ours)."""
    for name in names:
        if name not in IMAGES:
            raise ClusterError(f"{name} is none of our images: {', '.join(IMAGES)}")
    paths = {name: archive(name) for name in names or IMAGES}
    for name, path in paths.items():
        if not path.exists():
            print(f"building {reference(name)} …", flush=True)
            _base()
            _bud(name, path)
    return list(paths.values())


def load(*names: str) -> None:
    """Give the node images: ours by name (built when stale), or archives by path. Default: all of ours."""
    if not CONTAINERD_SOCKET.exists():
        raise ClusterError("the cluster is not up; start it with scripts/cluster up")
    for name in names or IMAGES:
        given = Path(name)
        path = given if given.suffix == ".tar" and given.exists() else build(name)[0]
        load_archive(path)
        print(f"loaded {name}", flush=True)


def load_archive(path: Path) -> None:
    """Hand one archive to containerd."""
    run("ctr", "--address", str(CONTAINERD_SOCKET), "--namespace", "k8s.io", "images", "import", str(path))


def load_when_served(path: Path) -> None:
    """The same for a containerd that has just been started."""
    for _ in polls(SERVED_TIMEOUT_S):
        if "TYPE" in run("ctr", "--address", str(CONTAINERD_SOCKET), "plugins", "ls", check=False):
            load_archive(path)
            return
    raise ClusterError(f"containerd does not serve {CONTAINERD_SOCKET}; see {STATE / 'logs'}/containerd.log")


def pause_archive() -> Path:
    """The image of every Pod's first process: one static program, nothing else."""
    path = ARCHIVES / f"pause-{hashlib.sha256(_PAUSE.encode()).hexdigest()[:16]}.tar"
    if path.exists():
        return path
    packages.check(packages.BUILDING)
    with tempfile.TemporaryDirectory(prefix="kruntimes-pause-") as text:
        folder = Path(text)
        (folder / "pause.c").write_text(_PAUSE)
        run("gcc", "-static", "-Os", "-s", "-o", str(folder / "pause"), str(folder / "pause.c"))
        (folder / "Dockerfile").write_text('FROM scratch\nCOPY pause /pause\nUSER 65535\nENTRYPOINT ["/pause"]\n')
        _buildah("bud", "--quiet", "--tag", PAUSE_IMAGE, str(folder))
    _push(PAUSE_IMAGE, path)
    return path


def digest(name: str) -> str:
    """Of the Dockerfile and of everything that it copies from the tree."""
    dockerfile = FOLDER / name / "Dockerfile"
    files = {dockerfile}
    for source in _COPIED.findall(dockerfile.read_text()):
        for path in ROOT.glob(source):
            files |= {path} if path.is_file() else {each for each in path.rglob("*") if each.is_file()}
    summed = hashlib.sha256(reference(name).encode())
    for path in sorted(files):
        if "__pycache__" not in path.parts:
            summed.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return summed.hexdigest()[:16]


def _bud(name: str, target: Path) -> None:
    trust = f"{CERTIFICATES}:{CERTIFICATES}:ro"  # this machine may reach its package mirrors through a proxy of its own
    command = ("bud", "--quiet", "--layers", "--volume", trust, "--build-arg", f"BASE={BASE_IMAGE}")
    _buildah(*command, "--tag", reference(name), "--file", str(FOLDER / name / "Dockerfile"), str(ROOT))
    _push(reference(name), target)
    for old in ARCHIVES.glob(f"{name}-????????????????.tar"):
        if old != target:
            old.unlink()


def _base() -> None:
    """A Debian with Python, as the local stand-in for a public base image."""
    if _buildah("images", "--quiet", BASE_IMAGE, check=False).strip():
        return
    packed = CACHE / f"base-{BASE_SUITE}.tar"
    if not packed.exists():
        print("bootstrapping the base image (minutes) …", flush=True)
        with tempfile.TemporaryDirectory(prefix="base-", dir=CACHE) as text:
            options = ("--variant=minbase", f"--include={BASE_PACKAGES}")
            run("nice", "debootstrap", *options, BASE_SUITE, f"{text}/root")
            for folder in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
                shutil.rmtree(f"{text}/root/{folder}", ignore_errors=True)
            run("tar", "--create", "--file", f"{packed}.new", "--directory", f"{text}/root", "--one-file-system", ".")
        Path(f"{packed}.new").replace(packed)
    with tempfile.TemporaryDirectory(prefix="base-", dir=CACHE) as text:
        (Path(text) / "Dockerfile").write_text(f'FROM scratch\nADD {packed.name} /\nCMD ["/bin/bash"]\n')
        os.link(packed, Path(text) / packed.name)
        _buildah("bud", "--quiet", "--tag", BASE_IMAGE, text)


def _push(image: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.unlink(missing_ok=True)
    _buildah("push", "--quiet", image, f"oci-archive:{beside}:{image}")
    beside.replace(path)


def _buildah(*arguments: str, check: bool = True) -> str:
    """buildah with storage of our own, so that nothing of the machine's is touched."""
    packages.check(packages.BUILDING)
    storage = ("--root", str(STORAGE / "root"), "--runroot", str(STORAGE / "run"), "--storage-driver", DRIVER)
    env = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    done = subprocess.run(
        ["nice", "buildah", *storage, *arguments], env=env, capture_output=True, text=True, check=False
    )
    if check and done.returncode != 0:
        raise ClusterError(f"`buildah {arguments[0]}` failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout
