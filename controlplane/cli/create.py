"""`krt run`: make Runs from manifests or one from options, and follow them until they are Ready or finished."""

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from controlplane.cli.describing import described
from controlplane.cli.ending import all_gone, request_deletion
from controlplane.cli.failure import NOT_READY, OTHER, USAGE, Failure
from controlplane.cli.manifest import read_manifests
from controlplane.cli.options import (
    ContextOption,
    Format,
    KubeconfigOption,
    NamespaceOption,
    OutputOption,
    TimeoutOption,
    seconds_of,
)
from controlplane.cli.outcomes import failures_of, report
from controlplane.cli.output import RUN_KIND, colour, emit, emit_name, print_object, say, shown
from controlplane.cli.plain import decoded, runs_path
from controlplane.cli.progress import Deadline, follow, why_waiting
from controlplane.cli.selection import Named
from controlplane.cli.session import Session
from controlplane.cli.waiting import ENDED, ended
from controlplane.kube.errors import AlreadyExists, KubeError, NotFound
from controlplane.kube.types_kruntimes import RunObject
from statemachine.run import TERMINAL, Phase

if TYPE_CHECKING:
    from controlplane.kube.client import KubeClient

_CREATE: Final = {"fieldValidation": "Strict", "fieldManager": "krt"}


def run(
    args: Annotated[
        list[str] | None,
        typer.Argument(help="Arguments of a task, after --.", metavar="[-- ARGS...]", show_default=False),
    ] = None,
    manifests: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", help="Manifest of Runs; - reads standard input; repeatable.", metavar="FILE"),
    ] = None,
    runtime: Annotated[str | None, typer.Option("--runtime", help="Runtime to run on, such as python.")] = None,
    handler: Annotated[
        str | None, typer.Option("--handler", help="file.function: makes a function; without it, a task.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="The source file, written into the Run; - reads standard input.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the Run; default: one is made up.")] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", help="NAME=VALUE for the user's code; repeatable.", metavar="VAR")
    ] = None,
    idle_timeout: Annotated[
        int | None, typer.Option("--idle-timeout", help="Seconds without a call after which a function is released.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", help="Calls of a function in flight.")] = None,
    lifetime: Annotated[
        str | None, typer.Option("--lifetime", help="spec.timeout of one attempt, such as 10m.", metavar="DURATION")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it until it is Ready or finished.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Delete a Run of that name first.")] = False,
    timeout: TimeoutOption = None,
    output: OutputOption = Format.TABLE,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Create a Run.

    \b
    Examples:
      krt run -f run.yaml --wait
      krt run --runtime python --handler main.invoke --file main.py --name hello --wait
      krt run --runtime bash --file job.sh --wait -- first second

    With --wait it ends with 0 at Ready or Succeeded, 7 on Failed, 8 on Timeout, 1 on Cancelled.
    """
    session, limit = Session(namespace, context, kubeconfig), seconds_of(timeout)
    if bool(manifests) == (runtime is not None):
        hint = f"; for a manifest: -f {args[0]}" if args and not runtime else ""
        raise Failure("InvalidUsage", f"give either -f FILE or --runtime NAME{hint}", USAGE)
    if manifests:
        given = (handler, file, name, env, idle_timeout, concurrency, lifetime, args)
        if any(value not in (None, [], ()) for value in given):
            raise Failure("InvalidUsage", "-f takes no other description of the Run beside it", USAGE)
        documents = read_manifests(manifests)
    else:
        assert runtime is not None
        documents = [described(runtime, handler, file, name, env, idle_timeout, concurrency, lifetime, args)]
    places = [_place(document, session) for document in documents]
    deadline, failures = Deadline(limit), list[Failure]()
    replaced = _clear(session, places, documents, deadline) if replace else set()

    def make() -> list[dict[str, Any]]:
        return [
            _make(session, where, document, where in replaced, output)
            for where, document in zip(places, documents, strict=True)
        ]

    async def work(client: "KubeClient") -> list[dict[str, Any]]:
        made = make()  # only now, with the client ready to look on
        runs = [Named(one["metadata"]["namespace"], one["metadata"]["name"]) for one in made]
        failures.extend(await failures_of(_follow(client, one, deadline) for one in made))
        return [_now(session, run, one) for run, one in zip(runs, made, strict=True)]

    made = session.call(work) if wait else make()
    if output in (Format.JSON, Format.YAML):
        whole = {"apiVersion": "v1", "kind": "List", "items": [shown(one) for one in made]}
        print_object(shown(made[0]) if len(made) == 1 else whole, output)
    report(failures)


def _place(document: dict[str, Any], session: Session) -> Named:
    """Namespace and name (which may be empty) of a document; as in kubectl, -n and the manifest may not name two."""
    metadata = document["metadata"]
    named, asked, name = metadata.get("namespace"), session.explicit_namespace, str(metadata.get("name") or "")
    if named and asked and named != asked:
        what = name or metadata.get("generateName")
        raise Failure("InvalidUsage", f"Run {what} is for namespace {named}, and -n says {asked}", USAGE)
    return Named(str(named or session.namespace), name)


def _make(session: Session, where: Named, document: dict[str, Any], replaced: bool, output: Format) -> dict[str, Any]:
    """Create one Run and say so."""
    try:
        made = _create(session, where.namespace, document)
    except AlreadyExists as error:
        hint = "a new source is a new Run: --replace deletes the old one first"
        raise Failure("AlreadyExists", f"{error}; {hint}", NOT_READY) from error
    if output is Format.NAME:
        emit_name(made["metadata"]["name"])
    elif output not in (Format.JSON, Format.YAML):
        emit(f"{RUN_KIND}/{made['metadata']['name']} {'replaced' if replaced else 'created'}")
    return made


def _create(session: Session, namespace: str, document: dict[str, Any], *, dry: bool = False) -> dict[str, Any]:
    query = _CREATE | ({"dryRun": "All"} if dry else {})
    return decoded(session.api.ask("POST", runs_path(namespace), query=query, body=document))


def _clear(session: Session, places: list[Named], documents: list[dict[str, Any]], deadline: Deadline) -> set[Named]:
    """Make room: what has the name of one of these Runs goes, once the API has found all of them valid."""
    taken = [where for where, document in zip(places, documents, strict=True) if _is_taken(session, where, document)]
    ending = []
    for where in taken:
        say(f"deleting Run {where.name}")
        with contextlib.suppress(NotFound):
            if uid := request_deletion(session, where):
                ending.append((where, uid))
    if ending:
        report(session.call(lambda client: all_gone(client, ending, deadline)))
    return set(taken)


def _is_taken(session: Session, where: Named, document: dict[str, Any]) -> bool:
    """Whether a Run of this name is there. Raises what the API has against the new one."""
    try:
        _create(session, where.namespace, document, dry=True)
    except AlreadyExists:
        return True
    return False


async def _follow(client: "KubeClient", made: dict[str, Any], deadline: Deadline) -> None:
    """Show every phase since it was made, with why it waits. Failure unless it gets Ready or succeeds."""
    began, told = time.monotonic(), ""
    since = msgspec.convert(made, RunObject)
    namespace, name = since.metadata.namespace, since.metadata.name
    async for now in follow(client, namespace, name, deadline, since):
        if now is None:
            raise Failure("NotFound", f"Run {name} was deleted meanwhile", OTHER)
        phase, why = now.status.phase, why_waiting(now)
        if (line := f"{phase}{why}") != told:
            told = line
            say(f"{(time.monotonic() - began) * 1000:8.0f} ms  {name}  {colour(phase, sys.stderr)}{why}")
        if phase in ENDED:
            raise ended(now)
        if Phase(phase) is Phase.READY or phase in TERMINAL:
            return


def _now(session: Session, run: Named, made: dict[str, Any]) -> dict[str, Any]:
    """The Run as it is by now; as it was made, when it is gone again."""
    try:
        return decoded(session.api.ask("GET", runs_path(run.namespace, run.name)))
    except KubeError:
        return made
