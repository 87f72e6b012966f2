"""The cluster as a whole: up, down, status, and its single components for tests that break them."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Final

from clusterlib import api, binaries, components, dns, images, namespaces, packages, processes
from clusterlib.settings import KUBECONFIG, NODE_NAME, STATE, UP_TIMEOUT_S, ClusterError

ACTIONS: Final = {"pause": signal.SIGSTOP, "resume": signal.SIGCONT, "kill": signal.SIGKILL, "stop": signal.SIGTERM}


def up() -> None:
    """Bring it up, or find it up. Returns when the node is Ready. Raises ClusterError, with nothing left running."""
    if running():
        return
    _check_machine()
    began = time.monotonic()
    down()
    binaries.ensure()
    pause = images.pause_archive()
    made = time.monotonic()
    STATE.mkdir(mode=0o700, parents=True)
    (STATE / "logs").mkdir()
    try:
        components.write_files()
        holder = namespaces.make()
        all_components = components.components()

        def start(*names: str) -> None:
            for name in names:
                processes.start(name, all_components[name].command, holder=holder, env=all_components[name].env)

        start("etcd", "containerd", "kube-apiserver")
        images.load_when_served(pause)
        _wait("the API server", lambda: api.answers("/readyz"), "kube-apiserver", "etcd")
        start("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "coredns")
        dns.apply()
        _wait("the node", lambda: api.node_ready(NODE_NAME), "kubelet", "containerd", "kube-controller-manager")
    except BaseException:
        _end_all()
        raise
    ended = time.monotonic()
    print(f"ready after {ended - began:.1f} s, {ended - made:.1f} s of it for the cluster itself", flush=True)


def down() -> None:
    """End every process by its recorded id, then remove namespaces, links, control groups and files."""
    _end_all()
    if STATE.exists():
        shutil.rmtree(STATE)


def running() -> bool:
    """Whether every component runs and the API server answers."""
    known = processes.recorded()
    names = {namespaces.HOLDER, *components.components()}
    return names <= known.keys() and all(known[name].alive for name in names) and api.answers("/readyz")


def status() -> list[str]:
    """One line for each component and for each thing that is there."""
    known = processes.recorded()
    lines = [f"{name:<24} {'running' if known[name].alive else 'ended'}  pid {known[name].pid}" for name in known]
    if not known:
        return ["down", *namespaces.left_behind()]
    lines.append(f"{'node':<24} {'ready' if api.node_ready(NODE_NAME) else 'not ready'}")
    return [*lines, f"{'kubeconfig':<24} {KUBECONFIG}"]


def act(name: str, action: str) -> None:
    """pause, resume, kill, stop or start one component."""
    all_components = components.components()
    known = processes.recorded()
    if name not in all_components:
        raise ClusterError(f"{name} is no component: {', '.join(all_components)}")
    if namespaces.HOLDER not in known or not known[namespaces.HOLDER].alive:
        raise ClusterError("the cluster is not up; start it with scripts/cluster up")
    if action == "start":
        if name in known and known[name].alive:
            raise ClusterError(f"{name} runs already")
        wanted = all_components[name]
        processes.start(name, wanted.command, holder=known[namespaces.HOLDER], env=wanted.env)
    elif action in ("kill", "stop"):
        processes.end([known[name]], number=ACTIONS[action], timeout_s=UP_TIMEOUT_S)
    else:
        known[name].signal(ACTIONS[action])


def _end_all() -> None:
    known = processes.recorded()
    holder = known.pop(namespaces.HOLDER, None)
    # With the first process of their namespace all others end, also those that nobody wrote down.
    processes.end([*([holder] if holder else []), *known.values()])
    namespaces.remove()
    left = namespaces.left_behind()
    if left:
        raise ClusterError(f"left behind: {'; '.join(left)}")


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise ClusterError("a cluster needs root: namespaces, control groups and containers")
    packages.check(packages.RUNNING)


def _wait(what: str, ready: Callable[[], bool], *watched: str) -> None:
    for _ in processes.polls(UP_TIMEOUT_S, 0.1):
        if ready():
            return
        ended = [name for name, each in processes.recorded().items() if name in watched and not each.alive]
        if ended:
            raise ClusterError(f"{ended[0]} ended while {what} was awaited:\n{_tail(ended[0])}")
    raise ClusterError(f"{what} is not ready after {UP_TIMEOUT_S:g} s:\n{_tail(watched[0])}")


def _tail(name: str) -> str:
    done = subprocess.run(
        ["tail", "-n", "15", str(STATE / "logs" / f"{name}.log")], capture_output=True, text=True, check=False
    )
    return done.stdout
