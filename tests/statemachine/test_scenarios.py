"""Stories in text: commands and the transcript that they give. `--rewrite-scenarios` writes the transcripts anew.

run KEY=VALUE…                       the Run as it is created
> controlplane|runtimed EVENT KEY=VALUE…   a decision; its epoch is the one in force unless epoch=ATTEMPT/POD says so
> user cancel|delete                 what the API then shows
> wait SECONDSs                      time goes by
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from statemachine import commands as cmd
from statemachine import events as ev
from statemachine.events import Role
from statemachine.invariants import violations
from statemachine.run import Epoch, PodUID, Run, RunUID, TaskResult
from statemachine.step import step

FOLDER = Path(__file__).parents[1] / "scenarios"
START_US = 1_000_000_000


class Teller:
    """Plays one story."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.at_us = START_US

    def tell(self, line: str) -> list[str]:
        """The transcript of one line."""
        words = line.removeprefix("> ").split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        match words:
            case ["run", *_]:
                return self._create(options)
            case ["user", verb]:
                assert self.run is not None
                wish = {"cancel": {"cancel_requested": True}, "delete": {"deleting": True}}[verb]
                self.run = replace(self.run, **wish)
                return []
            case ["wait", seconds]:
                self.at_us += int(float(seconds.removesuffix("s")) * 1_000_000)
                return []
            case [role, name, *_]:
                return self._decide(Role(role), getattr(ev, name), options)
        raise AssertionError(f"no such line: {line}")

    def _create(self, options: dict[str, str]) -> list[str]:
        foreign = options.pop("foreign_finalizer", "") == "true"
        spec = {"runtime": "python", "handler": "main.invoke", "ttl_ms": 1000} | options
        document = {"uid": "run", "namespace": "ns", "name": "story", "spec": spec, "foreign_finalizer": foreign}
        self.run = msgspec.convert(document, Run, strict=False)
        return [f"  {self.run.phase}"]

    def _decide(self, role: Role, kind: type[ev.Event], options: dict[str, str]) -> list[str]:
        assert self.run is not None
        self.at_us += 1000
        fields: dict[str, Any] = dict(options)
        if "pod" in fields:
            pod = fields.pop("pod")
            fields |= {"pod_name": f"pod-{pod}", "pod_uid": pod}
        if "epoch" in fields:
            attempt, pod = fields.pop("epoch").split("/")
            fields["epoch"] = Epoch(RunUID("run"), int(attempt), PodUID(pod))
        elif "epoch" in kind.__struct_fields__:
            fields["epoch"] = self.run.epoch
        if "exit_code" in fields:
            fields["result"] = TaskResult(exit_code=int(fields.pop("exit_code")))
        if "url" in fields:
            fields["endpoint_url"] = fields.pop("url")
        document = msgspec.to_builtins({"type": kind.__name__, "at_us": self.at_us} | fields)
        event = msgspec.convert(document, kind, strict=False)
        outcome = step(self.run, event, role)
        if outcome.refusal is not None:
            assert outcome.run is self.run
            return [f"  refused: {outcome.refusal.message}"]
        assert violations(self.run, outcome.run) == []
        self.run = outcome.run
        return [f"  {self._state()}", *(f"    {describe(command)}" for command in outcome.commands)]

    def _state(self) -> str:
        assert self.run is not None
        status = self.run.status
        parts = [str(self.run.phase), f"attempt={status.attempt}", f"failures={status.failures}"]
        parts += [f"pod={status.pod_uid}"] if status.pod_uid else []
        parts += [f"reason={status.reason}"] if status.reason else []
        if status.ready is not None:
            parts.append(f"Ready={status.ready.status}/{status.ready.reason}")
        if status.release is not None:
            parts.append(f"→{status.release.target}")
        if status.next_attempt_us is not None:
            parts.append(f"next=+{(status.next_attempt_us - self.at_us) // 1000}ms")
        return " ".join(parts + (["finalizer"] if self.run.finalizer else []))


def describe(command: cmd.Command) -> str:
    """A command in a few words."""
    name = type(command).__name__
    match command:
        case cmd.PatchStatus(guard=guard, status=status):
            return f"{name} {guard.phase}#{guard.attempt} → {status.phase}#{status.attempt}"
        case cmd.EmitEvent(warning=warning, reason=reason):
            return f"{name} {'Warning' if warning else 'Normal'} {reason}"
        case cmd.CloseEpoch(epoch=epoch) | cmd.ReleaseEpoch(epoch=epoch):
            return f"{name} {epoch.attempt}/{epoch.pod_uid}"
        case _:
            return name


def retell(text: str) -> str:
    """The story with its transcript as it is told now."""
    teller = Teller()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += teller.tell(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_the_story_goes_as_it_is_written(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    told = retell(text)
    if request.config.getoption("--rewrite-scenarios"):
        path.write_text(told)
    assert path.read_text() == told
