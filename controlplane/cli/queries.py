"""`krt get` and `krt list`: Runs as tables, JSON, YAML or names, once or as they change."""

import contextlib
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from controlplane.cli.failure import USAGE, Failure, failure_of
from controlplane.cli.options import (
    ContextOption,
    Format,
    KubeconfigOption,
    NamespaceOption,
    OutputOption,
    RunNames,
    SelectorOption,
    run_names_of,
)
from controlplane.cli.output import as_yaml, emit, emit_name, print_object, say, shown
from controlplane.cli.plain import TABLE_ACCEPT, pages_of, runs_path
from controlplane.cli.progress import Patience
from controlplane.cli.session import Session
from controlplane.cli.tables import ServerTable
from controlplane.kube.errors import Gone, KubeError, Unavailable, error_of
from controlplane.kube.meta import Status
from statemachine.run import Phase

if TYPE_CHECKING:
    from controlplane.kube.client import KubeClient

WATCH_S: Final = 300  # asked of the server; a watch that ends is begun again where it ended
WATCH_IDLE_S: Final = WATCH_S + 15.0

AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of every namespace.")]
FieldSelector = Annotated[
    str,
    typer.Option("--field-selector", help="Such as status.phase=Ready or spec.runtime=python.", metavar="FIELDS"),
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Go on and show every change.")]
NoHeaders = Annotated[bool, typer.Option("--no-headers", help="Tables without their heading.")]
IgnoreNotFound = Annotated[bool, typer.Option("--ignore-not-found", help="An absent Run is no error.")]


def get(
    names: RunNames = None,
    all_namespaces: AllNamespaces = False,
    selector: SelectorOption = "",
    field_selector: FieldSelector = "",
    watch: Watch = False,
    no_headers: NoHeaders = False,
    ignore_not_found: IgnoreNotFound = False,
    output: OutputOption = Format.TABLE,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Show Runs, by name or all of them.

    \b
    Examples:
      krt get
      krt get diagnose-service -o yaml
      krt get diagnose-service --watch
    """
    session, wanted = Session(namespace, context, kubeconfig), run_names_of(names)
    if not wanted:
        _list(session, all_namespaces, selector, field_selector, watch, no_headers, output)
        return
    if all_namespaces or selector or field_selector:
        raise Failure("InvalidUsage", "names go with no selector and with one namespace", USAGE)
    if watch and len(wanted) > 1:
        raise Failure("InvalidUsage", "--watch takes one name", USAGE)
    view = View(output, namespaces=False, heading=not no_headers, watched=watch)

    found, problem = _named(session, wanted, view, ignore_not_found)
    view.show(found, single=len(wanted) == 1)
    if watch and found:
        query = {"fieldSelector": f"metadata.name={wanted[0]}"}
        _watch(session, runs_path(session.namespace), query, view, _version_of(found[0]))
    if problem is not None:
        raise problem


def list_runs(
    all_namespaces: AllNamespaces = False,
    selector: SelectorOption = "",
    field_selector: FieldSelector = "",
    watch: Watch = False,
    no_headers: NoHeaders = False,
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
      krt list --field-selector status.phase=Ready --watch
    """
    _list(Session(namespace, context, kubeconfig), all_namespaces, selector, field_selector, watch, no_headers, output)


class View:
    """One way of showing Runs. Answers are Tables or Lists, as `accept` asks for."""

    def __init__(self, output: Format, *, namespaces: bool, heading: bool, watched: bool) -> None:
        self._output = output
        self.tabular = output in (Format.TABLE, Format.WIDE)
        self.accept = TABLE_ACCEPT if self.tabular else "application/json"
        self.with_objects = {"includeObject": "Object"} if self.tabular else {}
        """Asks for Tables of one row with the object in it, which says why a Run waits."""
        self._table = ServerTable(wide=output is Format.WIDE, namespaces=namespaces, heading=heading, watched=watched)

    def items(self, pages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What there is to show of a list: the Tables themselves, or the objects in it."""
        return pages if self.tabular else [item for page in pages for item in page.get("items") or ()]

    def show(self, objects: list[dict[str, Any]], *, single: bool) -> None:
        """Tables, or objects: one stands alone, several are a List."""
        if self.tabular:
            self._table.print(objects)
        elif self._output is Format.NAME:
            for one in objects:
                emit_name(one["metadata"]["name"])
        elif single and objects:
            print_object(shown(objects[0]), self._output)
        elif not single:
            items = [shown(one) for one in objects]
            whole = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items}
            print_object(whole, self._output)

    def changed(self, one: dict[str, Any]) -> None:
        """What a watch brought."""
        if self.tabular:
            self._table.print([one])
        elif self._output is Format.YAML:
            emit("---\n" + as_yaml(shown(one)).rstrip("\n"))
        else:
            self.show([one], single=True)


def _named(
    session: Session, names: list[str], view: View, ignore_not_found: bool
) -> tuple[list[dict[str, Any]], Failure | None]:
    """What is there, and the failure to end with: what is not there hides nothing of the rest, as in kubectl."""
    found: list[dict[str, Any]] = []
    problem: Failure | None = None
    for name in names:
        try:
            path = runs_path(session.namespace, name)
            found.append(session.api.get(path, query=view.with_objects, accept=view.accept))
        except KubeError as error:
            failure = failure_of(error)
            if error.status.code != 404 or (len(names) == 1 and not ignore_not_found):
                raise
            if ignore_not_found:
                continue
            if problem is not None:
                say(problem.line())
            problem = failure
    return found, problem


def _list(
    session: Session,
    all_namespaces: bool,
    selector: str,
    field_selector: str,
    watch: bool,
    no_headers: bool,
    output: Format,
) -> None:
    view = View(output, namespaces=all_namespaces, heading=not no_headers, watched=watch)
    query = {"labelSelector": selector, "fieldSelector": field_selector}
    query = {key: value for key, value in query.items() if value}

    path = runs_path(None if all_namespaces else session.namespace)
    pages = pages_of(session.api, path, query, view.accept)
    items = view.items(pages)
    if view.tabular and not any(page.get("rows") for page in pages):
        say("No Runs found" + ("" if all_namespaces else f" in namespace {session.namespace}"))
    elif watch:
        for item in items:
            view.changed(item)
    else:
        _say_why_pending(session, path, query, pages)
        view.show(items, single=False)
    if watch:
        _watch(session, path, query, view, str((pages[-1].get("metadata") or {}).get("resourceVersion", "")))


def _say_why_pending(session: Session, path: str, query: dict[str, str], pages: list[dict[str, Any]]) -> None:
    """Tables of a list come without objects, which may be large: those of Runs that wait are asked for, if there are
    any. Without an answer the list is shown as it came."""
    names = [str(one["name"]) for page in pages for one in page.get("columnDefinitions") or ()]
    if "Phase" not in names:
        return
    phase = names.index("Phase")
    rows = [row for page in pages for row in page.get("rows") or () if row["cells"][phase] == Phase.PENDING]
    if not rows:
        return
    selector = ",".join(part for part in (query.get("fieldSelector"), f"status.phase={Phase.PENDING}") if part)
    with contextlib.suppress(Failure, KubeError):
        found = pages_of(session.api, path, query | {"fieldSelector": selector}, "application/json")
        objects = {one["metadata"]["uid"]: one for page in found for one in page.get("items") or ()}
        for row in rows:
            row["object"] = objects.get(row["object"]["metadata"]["uid"], row["object"])


def _watch(session: Session, path: str, query: dict[str, str], view: View, version: str) -> None:
    """Show changes until interrupted."""
    session.call(lambda client: _follow(client, session, path, query, view, version))


async def _follow(
    client: "KubeClient", session: Session, path: str, query: dict[str, str], view: View, version: str
) -> None:
    """Changes since `version`. Where that part of history is lost the list is read, and shown, again."""
    patience = Patience()
    while True:
        try:
            if not version:
                pages = pages_of(session.api, path, query, view.accept)
                version = str((pages[-1].get("metadata") or {}).get("resourceVersion", ""))
                for item in view.items(pages):
                    view.changed(item)
            patience.answered()
            watch = query | view.with_objects
            watch |= {
                "watch": "1",
                "allowWatchBookmarks": "true",
                "resourceVersion": version,
                "timeoutSeconds": str(WATCH_S),
            }
            headers = {"Accept": view.accept}
            async for line in client.stream(path, query=watch, headers=headers, idle_seconds=WATCH_IDLE_S):
                version = _event(line, view) or version
        except Gone:
            version = ""
        except Unavailable as error:
            await patience.bear(error)


def _event(line: bytes, view: View) -> str:
    """Show one event and return its resourceVersion. Raises the error that the server sends instead of one."""
    event = msgspec.json.decode(line)
    kind, one = event.get("type"), event.get("object") or {}
    if kind == "ERROR":
        raise error_of(msgspec.convert(one, Status))
    if kind != "BOOKMARK":
        view.changed(one)
    return _version_of(one)


def _version_of(one: dict[str, Any]) -> str:
    """The resourceVersion of an object, or of the one in a Table's row."""
    rows = one.get("rows") or ()
    of = (rows[0].get("object") or {}) if rows else one
    return str((of.get("metadata") or {}).get("resourceVersion", ""))
