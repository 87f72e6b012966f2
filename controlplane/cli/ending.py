"""`krt cancel` and `krt delete`: the two ways to end Runs."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from controlplane.cli.failure import USAGE, Failure, from_kube
from controlplane.cli.manifest import read_manifests
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
from controlplane.cli.plain import decoded, runs_path
from controlplane.cli.progress import Deadline, gone
from controlplane.cli.selection import Named, Selection
from controlplane.cli.session import Session
from controlplane.kube.errors import KubeError, NotFound
from statemachine.run import TERMINAL

if TYPE_CHECKING:
    from controlplane.kube.client import KubeClient


def cancel(
    names: RunNames = None,
    selector: SelectorOption = "",
    every: EveryOption = False,
    output: OutputOption = Format.TABLE,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Ask for the end of Runs; the objects stay, as Cancelled.

    \b
    Examples:
      krt cancel diagnose-service
      krt cancel -l team=a
    """
    selection, session = Selection(names, selector, every), Session(namespace, context, kubeconfig)

    problems = []
    for run in selection.find(session):
        path = runs_path(run.namespace, run.name)
        asked = {"spec": {"cancelRequested": True}}
        try:
            now = decoded(session.api.ask("PATCH", path, body=asked, content_type="application/merge-patch+json"))
        except KubeError as error:
            problems.append(from_kube(error))
            continue
        phase = now.get("status", {}).get("phase", "")
        _tell(run, f"is {phase} already" if phase in TERMINAL else "cancellation requested", output, now)
    report(problems)


def delete(
    names: RunNames = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", help="The Runs of this manifest; - reads standard input.", metavar="FILE"),
    ] = None,
    selector: SelectorOption = "",
    every: EveryOption = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when they are gone.")] = True,
    ignore_not_found: Annotated[bool, typer.Option("--ignore-not-found", help="An absent Run is no error.")] = False,
    timeout: TimeoutOption = None,
    output: OutputOption = Format.TABLE,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Delete Runs; functions are released first.

    \b
    Examples:
      krt delete diagnose-service
      krt delete a b --no-wait
      krt delete --all --timeout 1m
    """
    if output in (Format.YAML, Format.WIDE):
        raise Failure("InvalidUsage", "krt delete prints no objects: --output takes name, or json for errors", USAGE)
    session, limit = Session(namespace, context, kubeconfig), seconds_of(timeout)
    if files and (names or selector or every):
        raise Failure("InvalidUsage", "-f takes no names, --selector or --all beside it", USAGE)
    named = [_place(document, session) for document in read_manifests(files)] if files else None
    selection = None if files else Selection(names, selector, every)

    problems: list[Failure] = []
    ending: list[tuple[Named, str]] = []
    for run in selection.find(session) if selection is not None else named or []:
        try:
            uid = request_deletion(session, run)
        except KubeError as error:
            if not isinstance(error, NotFound) or not (ignore_not_found or every or selector):
                problems.append(from_kube(error))
            continue
        if output is Format.NAME:
            emit_name(run.name)
        elif output is not Format.JSON:
            emit(f'{RUN_KIND} "{run.name}" deleted')
        if uid:
            ending.append((run, uid))
    if wait and ending:
        deadline = Deadline(limit or None)  # as in kubectl, 0 is no limit
        problems += session.call(lambda client: all_gone(client, ending, deadline))
    report(problems)


async def all_gone(client: "KubeClient", ending: list[tuple[Named, str]], deadline: Deadline) -> list[Failure]:
    """Wait until these Runs, by their UIDs, are gone; a failure for each that is not in time."""
    return await failures_of(gone(client, run.namespace, run.name, uid, deadline) for run, uid in ending)


def request_deletion(session: Session, run: Named) -> str:
    """Ask the API to delete it. The UID while the object is still there (a finalizer holds it), else empty."""
    answer = decoded(session.api.ask("DELETE", runs_path(run.namespace, run.name)))
    still_there = answer.get("kind") == "Run" and (answer.get("metadata") or {}).get("finalizers")
    return str(answer["metadata"]["uid"]) if still_there else ""


def _place(document: dict[str, Any], session: Session) -> Named:
    name = document["metadata"].get("name")
    if not name:
        raise Failure("ManifestInvalid", "a Run without metadata.name cannot be deleted by its manifest", USAGE)
    return Named(str(document["metadata"].get("namespace") or session.namespace), str(name))


def _tell(run: Named, what: str, output: Format, now: dict[str, Any]) -> None:
    if output is Format.NAME:
        emit_name(run.name)
    elif output in (Format.JSON, Format.YAML):
        print_object(shown(now), output)
    else:
        emit(f"{RUN_KIND}/{run.name} {what}")
