"""`krt wait`: as kubectl's, for Runs; it ends early where what is waited for can never come."""

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from controlplane.cli.failure import FUNCTION_FAILED, OTHER, TIMED_OUT, USAGE, Failure
from controlplane.cli.hints import next_step
from controlplane.cli.options import (
    ContextOption,
    EveryOption,
    Format,
    KubeconfigOption,
    NamespaceOption,
    OutputOption,
    RunNames,
    SelectorOption,
    TimeoutOption,
    seconds_of,
)
from controlplane.cli.outcomes import failures_of, report
from controlplane.cli.output import RUN_KIND, emit, emit_name, print_object, shown
from controlplane.cli.progress import Deadline, changes, follow, gone
from controlplane.cli.selection import Named, Selection
from controlplane.cli.session import Session
from controlplane.kube.errors import NotFound
from controlplane.kube.resources import RUNS
from controlplane.kube.types_kruntimes import RunObject
from statemachine.run import TERMINAL, Phase

if TYPE_CHECKING:
    from controlplane.kube.client import KubeClient

Goal = Callable[[RunObject], bool]

CREATED_POLL_S: Final = 0.2  # a Run that is not there yet is looked for this often
ENDED: Final = {Phase.FAILED: FUNCTION_FAILED, Phase.TIMEOUT: TIMED_OUT, Phase.CANCELLED: OTHER}
"""Exit codes of `krt run --wait` and `krt wait` for an end that was not asked for."""

_CONDITION: Final = re.compile(r"condition=([A-Za-z]+)(?:=(True|False|Unknown))?", re.IGNORECASE)
_JSONPATH: Final = re.compile(r"jsonpath=\{?((?:\.[A-Za-z][A-Za-z0-9]*)+)\}?(?:=(.*))?", re.DOTALL)


def wait(
    names: RunNames = None,
    condition: Annotated[
        str,
        typer.Option(
            "--for",
            help="condition=NAME[=False], phase=NAME, finished, create, delete, or jsonpath={.status.phase}=VALUE.",
            metavar="WHAT",
        ),
    ] = "condition=Ready",
    selector: SelectorOption = "",
    every: EveryOption = False,
    timeout: TimeoutOption = "30s",
    output: OutputOption = Format.TABLE,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Wait until Runs are Ready, in a phase, finished or gone.

    \b
    Examples:
      krt wait diagnose-service
      krt wait summarize-once --for finished --timeout 5m
      krt wait --all --for delete

    A Run that ends without getting there ends the wait: 7 when it Failed, 8 on Timeout, else 1.
    """
    reached = _goal(condition)
    selection = Selection(names, selector, every)
    session, limit = Session(namespace, context, kubeconfig), seconds_of(timeout)

    chosen = selection.find(session)

    async def work(client: "KubeClient") -> list[Failure]:
        deadline = Deadline(limit)
        return await failures_of(_one(client, run, condition, reached, deadline, output) for run in chosen)

    report(session.call(work))


async def _one(
    client: "KubeClient", run: Named, condition: str, reached: Goal, deadline: Deadline, output: Format
) -> None:
    if condition == "create":
        await _created(client, run, deadline)
    elif condition == "delete":
        await _deleted(client, run, deadline)
    else:
        await _reached(client, run, condition, reached, deadline)
    if output is Format.NAME:
        emit_name(run.name)
    elif output in (Format.JSON, Format.YAML):
        if condition != "delete":
            raw = await client.raw("GET", RUNS.path(run.namespace, run.name))
            print_object(shown(msgspec.json.decode(raw)), output)
    else:
        emit(f"{RUN_KIND}/{run.name} condition met")


async def _reached(client: "KubeClient", run: Named, condition: str, reached: Goal, deadline: Deadline) -> None:
    async for now in follow(client, run.namespace, run.name, deadline):
        if now is None:
            break
        if reached(now):
            return
        if now.status.phase in TERMINAL:
            raise ended(now, f"and will not get to {condition}")
    raise Failure("NotFound", f"Run {run.name} was deleted meanwhile", OTHER)


async def _created(client: "KubeClient", run: Named, deadline: Deadline) -> None:
    while True:
        try:
            await client.get(RUNS, run.namespace, run.name)
            return
        except NotFound:
            if deadline.left() == 0:
                raise deadline.passed(f"Run {run.name} was not created") from None
        await asyncio.sleep(min(CREATED_POLL_S, deadline.left() or CREATED_POLL_S))


async def _deleted(client: "KubeClient", run: Named, deadline: Deadline) -> None:
    stream = changes(client, run.namespace, run.name)
    now = await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    if now is not None:
        await gone(client, run.namespace, run.name, now.metadata.uid, deadline)


def ended(run: RunObject, clause: str = "") -> Failure:
    """The failure that a Run in a terminal phase is for who waited for something else."""
    name, status = run.metadata.name, run.status
    message = " ".join(part for part in (f"Run {name} is {status.phase}", clause) if part)
    code = ENDED.get(Phase(status.phase), OTHER)
    message = f"{message}: {status.message}" if status.message else message
    reason = status.reason or status.phase
    return Failure(reason, message, code, hint=next_step(reason, name))


def _goal(text: str) -> Goal:
    if text in ("delete", "create"):
        return lambda _: False
    if text == "finished":
        return lambda run: run.status.phase in TERMINAL
    if text.startswith("phase="):
        return _in_phase(text.removeprefix("phase="))
    if (found := _JSONPATH.fullmatch(text)) is not None:
        return _field(found.group(1), found.group(2))
    if (found := _CONDITION.fullmatch(text)) is not None:
        return _condition(found.group(1), (found.group(2) or "True").capitalize())
    known = "condition=NAME[=STATUS], phase=NAME, finished, create, delete, jsonpath={.PATH}[=VALUE]"
    raise Failure("InvalidOption", f"--for: {text!r} is none of {known}", USAGE)


def _in_phase(phase: str) -> Goal:
    known = {one.lower(): one for one in Phase if one is not Phase.GONE}
    wanted = known.get(phase.lower())
    if wanted is None:
        raise Failure("InvalidOption", f"--for: {phase!r} is no phase; there are {', '.join(known.values())}", USAGE)
    return lambda run: Phase(run.status.phase) is wanted


def _condition(kind: str, status: str) -> Goal:
    if kind.lower() not in ("ready", "scheduled"):
        raise Failure("InvalidOption", f"--for: a Run has the conditions Scheduled and Ready, not {kind}", USAGE)
    return lambda run: any(c.type.lower() == kind.lower() and c.status == status for c in run.status.conditions)


def _field(path: str, value: str | None) -> Goal:
    wanted = None if value is None else value.strip("'\"")

    def holds(run: RunObject) -> bool:
        found: Any = run
        for part in path.split(".")[1:]:
            found = _part(found, part)
        if wanted is None:
            return found not in (None, "", (), {})
        return found is not None and _text(found) == wanted

    return holds


def _part(value: Any, name: str) -> Any:
    """A field of an object by the API's name for it."""
    if isinstance(value, dict):
        return value.get(name)
    if not isinstance(value, msgspec.Struct):
        return None
    return next((getattr(value, f.name) for f in msgspec.structs.fields(value) if f.encode_name == name), None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
