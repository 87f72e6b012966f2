"""`krt get`, `list`, `wait`, `cancel` and `delete`: what their kubectl namesakes do, for Runs."""

import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from controlplane.cli.failure import OTHER, USAGE, Failure
from controlplane.cli.output import (
    TABLE_ACCEPT,
    Format,
    OutputOption,
    emit,
    print_object,
    print_server_table,
    say,
)
from controlplane.cli.progress import follow
from controlplane.cli.session import ContextOption, KubeconfigOption, NamespaceOption, Session
from controlplane.kube.codec import parse_duration_ms
from controlplane.kube.errors import NotFound
from controlplane.kube.resources import RUNS
from controlplane.kube.types_kruntimes import RunObject
from statemachine.run import TERMINAL, Phase

if TYPE_CHECKING:
    from controlplane.kube.client import KubeClient

Names = Annotated[list[str], typer.Argument(help="Names of Runs.", show_default=False)]
TimeoutOption = Annotated[str | None, typer.Option("--timeout", help="Give up after this long, such as 30s or 2m.")]
_CONDITION: Final = re.compile(r"condition=([A-Za-z]+)(?:=(True|False|Unknown))?", re.IGNORECASE)


def seconds_of(text: str | None) -> float | None:
    """A duration option in seconds."""
    if text is None:
        return None
    try:
        return parse_duration_ms(text) / 1000
    except ValueError as error:
        raise Failure("InvalidOption", f"--timeout: {error}", USAGE) from error


def get(
    names: Names,
    output: OutputOption = Format.TABLE,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Show Runs by name.

    \b
    Examples:
      krt get diagnose-service
      krt get diagnose-service -o yaml
    """
    session = Session(namespace, context, kubeconfig)

    async def work(client: "KubeClient") -> list[dict[str, Any]]:
        headers = _accept(output)
        return [
            msgspec.json.decode(await client.raw("GET", RUNS.path(session.namespace, name), headers=headers))
            for name in names
        ]

    found = session.call(work)
    if output in (Format.TABLE, Format.WIDE):
        table = found[0] | {"rows": [row for one in found for row in one.get("rows") or ()]}
        print_server_table(table, wide=output is Format.WIDE, namespaces=False)
    elif output is Format.NAME:
        for one in found:
            emit(f"run.kruntimes.io/{one['metadata']['name']}")
    else:
        print_object(found[0] if len(found) == 1 else _list_of(found), output)


def list_runs(
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of every namespace.")] = False,
    selector: Annotated[str, typer.Option("--selector", "-l", help="Label selector.")] = "",
    field_selector: Annotated[
        str, typer.Option("--field-selector", help="Such as status.phase=Ready or spec.runtime=python.")
    ] = "",
    output: OutputOption = Format.TABLE,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """List Runs.

    \b
    Examples:
      krt list
      krt list -A -o wide
      krt list --field-selector status.phase=Ready
    """
    session = Session(namespace, context, kubeconfig)

    async def work(client: "KubeClient") -> dict[str, Any]:
        query = {"labelSelector": selector, "fieldSelector": field_selector, "includeObject": "Metadata"}
        path = RUNS.path(None if all_namespaces else session.namespace)
        answer = await client.raw(
            "GET", path, query={key: value for key, value in query.items() if value}, headers=_accept(output)
        )
        decoded: dict[str, Any] = msgspec.json.decode(answer)
        return decoded

    found = session.call(work)
    if output in (Format.TABLE, Format.WIDE):
        if not found.get("rows"):
            say("No Runs found" + ("" if all_namespaces else f" in namespace {session.namespace}"))
            return
        print_server_table(found, wide=output is Format.WIDE, namespaces=all_namespaces)
    elif output is Format.NAME:
        for one in found["items"]:
            emit(f"run.kruntimes.io/{one['metadata']['name']}")
    else:
        print_object(found, output)


def wait(
    name: Annotated[str, typer.Argument(help="Name of the Run.", show_default=False)],
    condition: Annotated[
        str, typer.Option("--for", help="condition=Ready, condition=NAME=False, phase=NAME, finished or delete.")
    ] = "condition=Ready",
    timeout: TimeoutOption = "30s",
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Wait until a Run is Ready, in a phase, finished or gone.

    \b
    Examples:
      krt wait diagnose-service
      krt wait summarize-once --for finished
      krt wait x --for delete
    """
    session = Session(namespace, context, kubeconfig)
    reached = _goal(condition)

    async def work(client: "KubeClient") -> None:
        if condition == "delete":
            await gone(client, session.namespace, name, seconds_of(timeout))
            return
        async for run in follow(client, session.namespace, name, seconds_of(timeout)):
            if run is None:
                break
            if reached(run):
                return
            if run.status.phase in TERMINAL:
                message = f"Run {name} is {run.status.phase} and will not get to {condition}: {run.status.message}"
                raise Failure(run.status.reason or run.status.phase, message, OTHER)
        raise Failure("NotFound", f"Run {name} was deleted meanwhile", OTHER)

    session.call(work)
    say(f"run.kruntimes.io/{name} condition met")


def cancel(
    names: Names,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Ask for the end of Runs; the objects stay, as Cancelled.

    \b
    Example:
      krt cancel diagnose-service
    """
    session = Session(namespace, context, kubeconfig)

    async def work(client: "KubeClient") -> None:
        for name in names:
            await client.merge_patch(RUNS, session.namespace, name, {"spec": {"cancelRequested": True}})
            say(f"run.kruntimes.io/{name} cancellation requested")

    session.call(work)


def delete(
    names: Names,
    wait_until_gone: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when they are gone.")] = True,
    ignore_not_found: Annotated[bool, typer.Option("--ignore-not-found", help="An absent Run is no error.")] = False,
    timeout: TimeoutOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Delete Runs; functions are released first.

    \b
    Examples:
      krt delete diagnose-service
      krt delete a b --no-wait
    """
    session = Session(namespace, context, kubeconfig)

    async def work(client: "KubeClient") -> None:
        for name in names:
            try:
                await client.delete(RUNS, session.namespace, name)
            except NotFound:
                if not ignore_not_found:
                    raise
                continue
            say(f'run.kruntimes.io "{name}" deleted')
            if wait_until_gone:
                await gone(client, session.namespace, name, seconds_of(timeout))

    session.call(work)


async def gone(client: "KubeClient", namespace: str, name: str, timeout_s: float | None) -> None:
    """Return when the Run is gone, or another of its name is there; Failure, exit code 8, when that takes too long."""
    uid: str | None = None
    try:
        async for run in follow(client, namespace, name, timeout_s):
            if run is None or (uid is not None and run.metadata.uid != uid):
                return
            uid = run.metadata.uid
    except NotFound:
        return


def _goal(text: str) -> Any:
    if text == "delete":
        return lambda _: False
    if text == "finished":
        return lambda run: run.status.phase in TERMINAL
    if text.startswith("phase="):
        phase = text.removeprefix("phase=")
        if phase not in set(Phase):
            raise Failure("InvalidOption", f"--for: {phase} is no phase; there are {', '.join(Phase)}", USAGE)
        return lambda run: run.status.phase == phase
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise Failure(
            "InvalidOption", f"--for: {text!r} is none of condition=NAME[=STATUS], phase=NAME, finished, delete", USAGE
        )
    kind, status = found.group(1), (found.group(2) or "True").capitalize()

    def holds(run: RunObject) -> bool:
        return any(c.type.lower() == kind.lower() and c.status == status for c in run.status.conditions)

    return holds


def _accept(output: Format) -> dict[str, str]:
    return {"Accept": TABLE_ACCEPT if output in (Format.TABLE, Format.WIDE) else "application/json"}


def _list_of(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": items}
