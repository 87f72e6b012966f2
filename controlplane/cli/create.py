"""`krt run`: make a Run from a manifest or from options, and follow it until it is Ready or finished."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from controlplane.cli.failure import FUNCTION_FAILED, OTHER, TIMED_OUT, USAGE, Failure
from controlplane.cli.output import Format, OutputOption, colour, emit, print_object, say
from controlplane.cli.progress import follow
from controlplane.cli.queries import TimeoutOption, gone, seconds_of
from controlplane.cli.session import ContextOption, KubeconfigOption, NamespaceOption, Session
from controlplane.kube.errors import AlreadyExists, NotFound
from controlplane.kube.resources import RUNS
from controlplane.kube.types_kruntimes import API_VERSION
from statemachine.run import TERMINAL, Phase

if TYPE_CHECKING:
    from controlplane.kube.client import KubeClient

MANIFEST_MAX_BYTES: Final = 3 * 1024 * 1024  # what an API server takes in one request
MOVED: Final = {
    "handler": "spec.mode.function.handler",
    "entrypoint": "spec.mode.task.entrypoint",
    "args": "spec.mode.task.args",
}
_EXIT_CODES: Final = {Phase.FAILED: FUNCTION_FAILED, Phase.TIMEOUT: TIMED_OUT, Phase.CANCELLED: OTHER}


def run(
    args: Annotated[
        list[str] | None,
        typer.Argument(help="Arguments of a task, after --.", metavar="[-- ARGS...]", show_default=False),
    ] = None,
    manifest: Annotated[
        str | None, typer.Option("--filename", "-f", help="Manifest of Runs; - reads standard input.")
    ] = None,
    runtime: Annotated[str | None, typer.Option("--runtime", help="Runtime to run on, such as python.")] = None,
    handler: Annotated[
        str | None, typer.Option("--handler", help="file.function: makes a function; without it, a task.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="The source file, written into the Run.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the Run; default: one is made up.")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", help="NAME=VALUE for the user's code; repeatable.")] = None,
    idle_timeout: Annotated[
        int | None, typer.Option("--idle-timeout", help="Seconds without a call after which a function is released.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", help="Calls of a function in flight.")] = None,
    lifetime: Annotated[
        str | None, typer.Option("--lifetime", help="spec.timeout of one attempt, such as 10m.")
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
    session = Session(namespace, context, kubeconfig)
    if (manifest is None) == (runtime is None):
        raise Failure("InvalidOption", "give either -f FILE or --runtime NAME", USAGE)
    if manifest is not None:
        given = (handler, file, name, env, idle_timeout, concurrency, lifetime, args)
        if any(value for value in given):
            raise Failure("InvalidOption", "-f takes no other description of the Run beside it", USAGE)
        documents = read_manifest(manifest)
    else:
        assert runtime is not None
        documents = [_described(runtime, handler, file, name, env, idle_timeout, concurrency, lifetime, args or [])]
    limit = seconds_of(timeout)

    async def work(client: "KubeClient") -> list[dict[str, Any]]:
        made = []
        for document in documents:
            where = document["metadata"].get("namespace") or session.namespace
            if replace and document["metadata"].get("name"):
                await _remove(client, where, document["metadata"]["name"])
            made.append(await _create(client, where, document))
        if output is Format.TABLE:
            for one in made:
                say(f"run.kruntimes.io/{one['metadata']['name']} created")
        if wait:
            for one in made:
                await _follow(client, one["metadata"]["namespace"], one["metadata"]["name"], limit)
        return made

    made = session.call(work)
    if output is Format.NAME:
        for one in made:
            emit(f"run.kruntimes.io/{one['metadata']['name']}")
    elif output in (Format.JSON, Format.YAML):
        print_object(made[0] if len(made) == 1 else {"apiVersion": "v1", "kind": "List", "items": made}, output)


def read_manifest(where: str) -> list[dict[str, Any]]:
    """The Runs of a YAML or JSON file (`-` is standard input). Failure, exit code 2, names what is wrong."""

    import yaml

    try:
        raw = sys.stdin.buffer.read(MANIFEST_MAX_BYTES + 1) if where == "-" else _read(Path(where))
    except OSError as error:
        raise Failure("ManifestUnreadable", f"cannot read {where}: {error.strerror}", USAGE) from error
    if len(raw) > MANIFEST_MAX_BYTES:
        raise Failure("ManifestInvalid", f"{where} is larger than {MANIFEST_MAX_BYTES} bytes", USAGE)
    try:
        documents = [document for document in yaml.safe_load_all(raw) if document is not None]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Failure("ManifestInvalid", f"{where} is no YAML: {error}", USAGE) from error
    if not documents:
        raise Failure("ManifestInvalid", f"{where} holds no object", USAGE)
    for document in documents:
        _check(where, document)
    return documents


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MANIFEST_MAX_BYTES + 1)


def _check(where: str, document: Any) -> None:
    if not isinstance(document, dict) or document.get("kind") != "Run" or document.get("apiVersion") != API_VERSION:
        kind = document.get("kind") if isinstance(document, dict) else type(document).__name__
        raise Failure("ManifestInvalid", f"{where}: krt run takes Runs of {API_VERSION}, not {kind}", USAGE)
    if not isinstance(document.get("metadata"), dict):
        raise Failure("ManifestInvalid", f"{where}: metadata must be an object with a name or generateName", USAGE)
    spec = document.get("spec")
    for field, place in MOVED.items():
        if isinstance(spec, dict) and field in spec:
            raise Failure("ManifestInvalid", f"{where}: spec.{field} is no field; it moved to {place}", USAGE)


def _described(
    runtime: str,
    handler: str | None,
    file: Path | None,
    name: str | None,
    env: list[str] | None,
    idle_timeout: int | None,
    concurrency: int | None,
    lifetime: str | None,
    args: list[str],
) -> dict[str, Any]:
    spec: dict[str, Any] = {"runtime": runtime}
    if file is not None:
        try:
            source = _read(file).decode()
        except OSError as error:
            raise Failure("SourceUnreadable", f"cannot read {file}: {error.strerror}", USAGE) from error
        except UnicodeDecodeError as error:
            raise Failure("SourceInvalid", f"{file} is not UTF-8", USAGE) from error
        spec["source"] = {"inline": source}
    if handler is not None:
        if file is None:
            raise Failure("InvalidOption", "--handler needs --file", USAGE)
        if args:
            raise Failure("InvalidOption", "a function takes no arguments; they are for tasks", USAGE)
        spec["source"]["inlinePath"] = file.name
        function = {"handler": handler, "idleTimeoutSeconds": idle_timeout, "concurrency": concurrency}
        spec["mode"] = {"function": {key: value for key, value in function.items() if value is not None}}
    else:
        if idle_timeout is not None or concurrency is not None:
            raise Failure("InvalidOption", "--idle-timeout and --concurrency are for functions; add --handler", USAGE)
        task: dict[str, Any] = {"entrypoint": file.name} if file is not None else {}
        spec["mode"] = {"task": task | ({"args": args} if args else {})}
    if env:
        spec["env"] = [_variable(text) for text in env]
    if lifetime is not None:
        spec["timeout"] = lifetime
    stem = file.stem.lower().replace("_", "-") if file is not None else runtime
    metadata = {"name": name} if name else {"generateName": f"{stem}-"}
    return {"apiVersion": API_VERSION, "kind": "Run", "metadata": metadata, "spec": spec}


def _variable(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Failure("InvalidOption", f"--env: {text!r} is not NAME=VALUE", USAGE)
    return {"name": name, "value": value}


async def _create(client: "KubeClient", namespace: str, document: dict[str, Any]) -> dict[str, Any]:
    body = msgspec.json.encode(document)
    try:
        answer = await client.raw(
            "POST",
            RUNS.path(namespace),
            query={"fieldValidation": "Strict", "fieldManager": "krt"},
            body=body,
            headers={"Content-Type": "application/json"},
        )
    except AlreadyExists as error:
        raise Failure(
            "AlreadyExists", f"{error}; a new source is a new Run: --replace deletes the old one first", OTHER
        ) from error
    made: dict[str, Any] = msgspec.json.decode(answer)
    return made


async def _remove(client: "KubeClient", namespace: str, name: str) -> None:
    try:
        await client.delete(RUNS, namespace, name)
    except NotFound:
        return
    await gone(client, namespace, name, None)


async def _follow(client: "KubeClient", namespace: str, name: str, limit: float | None) -> None:
    began = time.monotonic()
    shown = ""
    async for run in follow(client, namespace, name, limit):
        if run is None:
            raise Failure("NotFound", f"Run {name} was deleted meanwhile", OTHER)
        status = run.status
        waiting = next((c for c in status.conditions if c.type == "Scheduled" and c.status == "False"), None)
        why = f" ({waiting.reason}: {waiting.message})" if waiting is not None and status.phase == "Pending" else ""
        if (line := f"{status.phase}{why}") != shown:
            shown = line
            _show(name, status.phase, why, time.monotonic() - began)
        if Phase(status.phase) is Phase.READY:
            return
        if status.phase in TERMINAL:
            code = _EXIT_CODES.get(Phase(status.phase), 0)
            if code:
                raise Failure(status.reason or status.phase, status.message or f"Run {name} is {status.phase}", code)
            return


def _show(name: str, phase: str, why: str, seconds: float) -> None:

    say(f"{seconds * 1000:8.0f} ms  {name}  {colour(phase, sys.stderr)}{why}")
