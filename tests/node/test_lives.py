"""One container's life, the order of endings, statuses, variables and images: the pure parts of a Pod."""

import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controlplane.embedded.node import environment, images, probes
from controlplane.embedded.node.addresses import AddressPool, NoAddress
from controlplane.embedded.node.lives import End, Life, State, lives_of, may_start
from controlplane.embedded.node.podstatus import status_of
from controlplane.embedded.node.stopping import Stopping
from controlplane.kube.types import Container, Pod, PodStatus


def pod(**spec: Any) -> Pod:
    defaults: dict[str, Any] = {
        "initContainers": [{"name": "runtimed", "image": "kruntimes/runtimed", "restartPolicy": "Always"}],
        "containers": [{"name": "runtime", "image": "kruntimes/python-runtime"}],
    }
    body = {"metadata": {"name": "p", "namespace": "default", "uid": "u1"}, "spec": defaults | spec}
    return msgspec.convert(body, Pod)


def run(life: Life, *, code: int = 1, seconds: float = 0.0, at: float = 100.0) -> None:
    """One run of a container, from its start to its end."""
    life.starting()
    life.started(7, 1_000_000)
    life.ended(End(code, 1_000_000, 1_000_000 + int(seconds * 1_000_000)), at)


def status(lives: list[Life], **options: Any) -> PodStatus:
    defaults: dict[str, Any] = {
        "ip": "127.1.1.2",
        "now_us": 5_000_000,
        "stopping": False,
        "halted": False,
        "over": False,
    }
    return status_of(PodStatus(), lives, **(defaults | options))


def ready(found: PodStatus) -> str:
    return next(condition.status for condition in found.conditions if condition.type == "Ready")


def test_the_backoff_doubles_to_its_limit_and_a_long_run_clears_it() -> None:
    life = lives_of(pod())[1]
    delays = []
    for _ in range(9):
        run(life)
        delays.append(round(life.next_start_at - 100.0, 3))
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    run(life, seconds=10.0)
    assert life.next_start_at == pytest.approx(100.1)
    assert life.run == 9


@pytest.mark.parametrize(
    ("policy", "code", "state"),
    [
        ("Always", 0, State.ENDED),
        ("OnFailure", 0, State.DONE),
        ("OnFailure", 1, State.ENDED),
        ("Never", 1, State.DONE),
    ],
)
def test_the_restart_policy_decides_what_follows_an_end(policy: str, code: int, state: State) -> None:
    life = lives_of(pod(restartPolicy=policy))[1]
    run(life, code=code)
    assert life.state is state


def test_sidecars_restart_whatever_the_policy_of_the_pod() -> None:
    life = lives_of(pod(restartPolicy="Never"))[0]
    run(life, code=0)
    assert life.state is State.ENDED


def test_a_refused_start_is_no_run() -> None:
    life = lives_of(pod())[1]
    run(life)
    life.starting()
    life.refused("RunContainerError", "no", 100.0)
    life.starting()
    assert life.id == "u1/runtime/1"


def test_containers_start_after_sidecars_and_after_init_containers_succeeded() -> None:
    first = {"name": "first", "image": "x"}
    lives = lives_of(pod(initContainers=[first, {"name": "runtimed", "restartPolicy": "Always"}]))
    assert [may_start(lives, index) for index in range(3)] == [True, False, False]
    run(lives[0], code=0)
    assert [may_start(lives, index) for index in range(3)] == [True, True, False]
    lives[1].starting()
    assert not may_start(lives, 2)
    lives[1].started(1, 1)
    assert may_start(lives, 2)
    run(lives[1])
    assert may_start(lives, 2)  # a sidecar that restarts holds nobody up


def test_phases_follow_the_containers() -> None:
    lives = lives_of(pod())
    assert status(lives).phase == "Pending"
    for life in lives:
        life.starting()
        life.started(1, 1)
    assert (status(lives).phase, ready(status(lives))) == ("Running", "True")
    assert ready(status(lives, stopping=True)) == "False"
    lives[1].ended(End(1, 1, 2), 0.0)
    assert (status(lives).phase, ready(status(lives))) == ("Running", "False")
    waiting = status(lives).container_statuses[0].state
    assert waiting is not None and waiting.waiting is not None and waiting.waiting.reason == "CrashLoopBackOff"
    lives[0].ended(End(0, 1, 2), 0.0)
    over = status(lives, halted=True, over=True)
    assert over.phase == "Failed"
    assert all(s.state and s.state.terminated for s in (*over.container_statuses, *over.init_container_statuses))


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    lives = lives_of(pod())
    before = status(lives)
    after = status_of(before, lives, ip="127.1.1.2", now_us=9_000_000, stopping=False, halted=False, over=False)
    assert after == before


def test_an_ending_asks_containers_then_sidecars_and_kills_after_the_deadline() -> None:
    lives = lives_of(pod())
    for life in lives:
        life.starting()
        life.started(1, 1)
    stopping = Stopping(10.0)
    assert stopping.signals(lives, 0.0) == [("u1/runtime/0", signal.SIGTERM)]
    assert stopping.signals(lives, 5.0) == []
    assert stopping.next_due(lives) == 10.0
    assert stopping.signals(lives, 10.0) == [("u1/runtime/0", signal.SIGKILL)]
    assert stopping.signals(lives, 11.0) == []
    assert stopping.next_due(lives) == float("inf")
    lives[1].ended(End(137, 1, 2), 11.0)
    assert stopping.signals(lives, 11.0) == [("u1/runtimed/0", signal.SIGTERM)]
    assert stopping.next_due(lives) == 13.0  # a sidecar has two seconds even when the grace is used up
    assert stopping.signals(lives, 13.0) == [("u1/runtimed/0", signal.SIGKILL)]


def test_an_image_is_known_whatever_its_registry_tag_or_digest() -> None:
    for name in ("kruntimes/runtimed", "kruntimes/runtimed:v1", "reg.example:5000/kruntimes/runtimed@sha256:00"):
        found = images.find(name)
        assert found is not None and found.target == "dataplane.runtimed.main"
    for name in ("runtimed", "nginx", "evil-kruntimes/runtimed", ""):
        assert images.find(name) is None


def container(**fields: Any) -> Container:
    return msgspec.convert({"name": "c", "image": "kruntimes/bash-runtime"} | fields, Container)


def variables(found: Container) -> dict[str, str]:
    image = images.find(found.image)
    assert image is not None
    return environment.variables(
        pod(), found, image, ip="127.1.1.2", host_ip="127.0.0.1", volumes=Path("/v"), socket_volumes=Path("/s"),
        machine={"PATH": "/bin"}, referenced={("Secret", "s", "k"): "hidden"},
    )  # fmt: skip


def test_paths_of_the_container_become_paths_of_this_machine() -> None:
    mounts = [
        {"name": "w", "mountPath": "/work"},
        {"name": "deep", "mountPath": "/work/deep/"},
        {"name": "k", "mountPath": "/run/kruntimes"},
    ]
    env = variables(container(volumeMounts=mounts, env=[{"name": "OTHER", "value": "/work/x"}]))
    assert env["KRUNTIMES_WORK_DIR"] == "/v/w"
    assert env["KRUNTIMES_SOCKET"] == "/s/k/runtime.sock"
    assert env["OTHER"] == "/work/x"
    assert "KRUNTIMES_CA_FILE" not in env
    assert env["KRUNTIMES_LANGUAGE"] == "bash"
    moved = variables(container(volumeMounts=mounts, env=[{"name": "KRUNTIMES_WORK_DIR", "value": "/work/deep/er"}]))
    assert moved["KRUNTIMES_WORK_DIR"] == "/v/deep/er"
    assert environment.host_path(container(volumeMounts=mounts), Path("/v"), "/workshop") is None


def test_variables_come_from_fields_and_keys_and_a_missing_one_is_named() -> None:
    def ref(**source: Any) -> dict[str, Any]:
        return {"env": [{"name": "X", "valueFrom": source}]}

    assert variables(container(**ref(fieldRef={"fieldPath": "metadata.uid"})))["X"] == "u1"
    assert variables(container(**ref(fieldRef={"fieldPath": "status.podIP"})))["X"] == "127.1.1.2"
    assert variables(container(**ref(secretKeyRef={"name": "s", "key": "k"})))["X"] == "hidden"
    assert "X" not in variables(container(**ref(configMapKeyRef={"name": "c", "key": "k", "optional": True})))
    with pytest.raises(environment.UnresolvedVariable, match="ConfigMap c has no key k"):
        variables(container(**ref(configMapKeyRef={"name": "c", "key": "k"})))


def test_only_probes_that_this_machine_can_ask_are_asked() -> None:
    mounts = [{"name": "w", "mountPath": "/work"}, {"name": "k", "mountPath": "/run/kruntimes"}]
    asked = container(
        volumeMounts=mounts,
        readinessProbe={"exec": {"command": ["cat", "/work/ready"]}},
        livenessProbe={"exec": {"command": ["krt-alive"]}},
    )
    assert probes.ready_file(asked, Path("/v")) == Path("/v/w/ready")
    assert probes.alive_socket(asked, Path("/s")) == Path("/s/k/runtime.sock")
    other = container(readinessProbe={"httpGet": {"path": "/"}}, livenessProbe={"exec": {"command": ["true"]}})
    assert probes.ready_file(other, Path("/v")) is None
    assert probes.alive_socket(other, Path("/s")) is None


def test_addresses_are_unique_kept_and_given_back() -> None:
    pool = AddressPool("127.98.1")
    first, second = pool.take((), ""), pool.take((), "")
    assert first != second
    assert pool.take((), "127.98.1.77") == "127.98.1.77"
    assert not pool.keep("127.98.1.77")
    assert not pool.keep("10.0.0.1")
    pool.give_back("127.98.1.77")
    assert pool.keep("127.98.1.77")


def test_an_exhausted_network_says_so() -> None:
    pool = AddressPool("127.98.2")
    with pytest.raises(NoAddress, match="all 250 addresses"):
        for _ in range(251):
            pool.take((), "")
