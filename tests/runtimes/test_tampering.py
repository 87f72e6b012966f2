# ruff: noqa: ASYNC240
# Looking at files of this machine takes no time worth a thread.
"""User code turns what is its own against the server: folders that become links, its channel, its worker's folder."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import textwrap
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runtimes.contract.mux import CallError
from runtimes.contract.trees import removal
from runtimes.python import sandbox
from runtimes.server.environment import Folders, remove_tree
from runtimes.server.modes import Modes
from tests.conformance.kit import Bench, failing, until


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir(mode=0o755)
    for number in range(50):
        (folder / f"keep{number}").touch()
    return folder


async def load(bench: Bench, source: str, **more: Any) -> str:
    name = "main.py" if bench.dialect.name == "python" else "main.sh"
    return (await bench.register("", files={name: textwrap.dedent(source)}, **more))[1]


# --- private folders


def test_a_link_in_the_place_of_a_private_folder_is_removed_and_not_followed(tmp_path: Path, outside: Path) -> None:
    source = tmp_path / "attempt/src"
    source.mkdir(parents=True)
    for name in ("home", "tmp", "calls"):
        (source.parent / name).symlink_to(outside)
    folders = Folders.of(str(source), tmp_path)
    folders.create()
    assert all(folder.is_dir() and not folder.is_symlink() for folder in folders.private)
    assert len(list(outside.iterdir())) == 50


def test_private_folders_that_are_there_are_made_afresh(tmp_path: Path) -> None:
    source = tmp_path / "attempt/src"
    source.mkdir(parents=True)
    folders = Folders.of(str(source), tmp_path)
    folders.create()
    (folders.home / "of-an-earlier-one").touch()
    (folders.tmp).chmod(0o777)
    folders.create()
    assert list(folders.home.iterdir()) == [] and folders.tmp.stat().st_mode & 0o777 == 0o700


def test_no_rule_of_the_sandbox_leads_through_a_link(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").symlink_to(outside)
    (tmp_path / "above").symlink_to(tmp_path)
    enclosure = sandbox.Enclosure(None, [], False)
    allowed: list[str] = []

    def note(fd: int, rights: int) -> None:
        allowed.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        os.close(fd)

    monkeypatch.setattr(enclosure, "_add", note)
    for path in (tmp_path / "home", tmp_path / "above/outside", tmp_path / "absent", outside):
        enclosure._allow_folder(str(path))
    assert allowed == [str(outside)]


# --- removal


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_folder_that_is_swapped_for_a_link_while_it_is_removed_leads_nowhere(tmp_path: Path, outside: Path) -> None:
    swaps, done = 0, threading.Event()
    tree, link = tmp_path / "reach/tree", tmp_path / "reach/link"
    tree.parent.mkdir()

    def swap() -> None:
        nonlocal swaps
        while not done.is_set():
            for victim in (tree, tree / "deep"):
                try:
                    link.unlink(missing_ok=True)
                    link.symlink_to(outside)
                    victim.rename(f"{victim}.was")
                    link.rename(victim)
                    swaps += 1
                except OSError:
                    continue

    attacker = threading.Thread(target=swap)
    attacker.start()
    try:
        for _ in range(200):
            (tree / "deep/deeper").mkdir(parents=True, exist_ok=True)
            for _ in removal(tree):
                pass
            shutil.rmtree(f"{tree}.was", ignore_errors=True)
            if tree.is_symlink():
                tree.unlink()
    except OSError:
        pass  # What it made was swapped away under it.
    finally:
        done.set()
        attacker.join()
    assert swaps and len(list(outside.glob("keep*"))) == 50 and outside.stat().st_mode & 0o777 == 0o755


def test_a_step_of_a_removal_is_where_it_was_whatever_stands_there_now(tmp_path: Path, outside: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a/b").mkdir(parents=True)
    for number in range(3):
        (tree / f"a/{number}").touch()
    steps = removal(tree)
    next(steps)  # It is in the tree; the next step goes into `a`.
    (tree / "a").rename(tree / "was")
    (tree / "a").symlink_to(outside)
    tree.rename(tmp_path / "moved")
    tree.symlink_to(outside)
    for _ in steps:
        pass
    assert len(list(outside.iterdir())) == 50 and outside.stat().st_mode & 0o777 == 0o755


def test_a_tree_of_any_depth_goes_with_four_descriptors(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    fd = os.open(tree, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.fchmod(fd, 0)
        os.close(fd)
        fd = below
    os.close(fd)
    before = _descriptors()
    most = max(_descriptors() for _ in removal(tree))
    assert not tree.exists() and most <= before + 4 and _descriptors() == before


def test_a_removal_that_is_not_ended_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "tree/a/b").mkdir(parents=True)
    before = _descriptors()
    steps = removal(tmp_path / "tree")
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert _descriptors() == before
    remove_tree(tmp_path / "tree")


# --- a Bash worker's folder


async def test_a_worker_folder_that_is_replaced_by_a_link_takes_no_file_elsewhere(bash: Bench) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        source = f"""
            invoke() {{
                local folder=${{KRUNTIME_REQUEST_FILE%/*}} request; request=$(cat)
                case $request in
                *forever*) mv "$folder" "$folder.old" && ln -s {place} "$folder" ;;
                *while*) mv "$folder" "$folder.old" && ln -s {place} "$folder"
                    (sleep 0.2; rm "$folder"; mv "$folder.old" "$folder") >/dev/null 2>&1 & ;;
                esac
                printf '{{"outputs":{{}}}}'
            }}
        """
        for how in ("forever", "while"):
            registration = await load(bash, source)
            assert await bash.invoke(registration, how) == {"outputs": {}}
            answered = 0
            for _ in range(8):
                try:
                    assert await bash.invoke(registration, "echo") == {"outputs": {}}
                    answered += 1
                except CallError as error:
                    assert error.error.reason in ("WorkerCrashed", "HandlerFailed"), error
            assert answered >= 6
        assert list(Path(place).iterdir()) == []


@pytest.mark.parametrize("what", ['rm -rf "$d"', 'rm -rf "$d"/*', 'mv "$d" "$d.old"', 'chmod 0 "$d"'])
async def test_a_worker_that_has_lost_its_folder_is_replaced(bash: Bench, what: str) -> None:
    source = f"""
        invoke() {{
            local d=${{KRUNTIME_REQUEST_FILE%/*}} r; r=$(cat)
            case $r in *harm*) {what} ;; esac
            printf '{{"outputs":{{}}}}'
        }}
    """
    registration = await load(bash, source)
    assert await bash.invoke(registration, "harm") == {"outputs": {}}
    failed = 0
    for _ in range(6):
        try:
            await bash.invoke(registration, "echo")
        except CallError as error:
            assert error.error.reason in ("WorkerCrashed", "HandlerFailed"), error
            failed += 1
    assert failed <= 2


async def test_the_command_line_of_a_bash_worker_names_no_folder_of_its_run(bash: Bench) -> None:
    source = """
        invoke() { printf '{"outputs":{"pid":%s,"folder":"%s"}}' "$$" "${KRUNTIME_REQUEST_FILE%/*}"; }
    """
    epoch, registration = await bash.register("", files={"main.sh": textwrap.dedent(source)})
    facts = (await bash.invoke(registration))["outputs"]
    assert epoch.run_uid in facts["folder"]
    assert epoch.run_uid.encode() not in Path(f"/proc/{facts['pid']}/cmdline").read_bytes()


# --- artifacts


async def test_an_artifacts_folder_that_has_become_a_link_is_not_handed_over(python: Bench, outside: Path) -> None:
    source = """
        import os
        def invoke(request):
            folder = os.environ["KRUNTIME_ARTIFACTS_DIR"]
            open(folder + "/a", "w").close()
            if request:
                os.rename(folder, folder + ".was")
                os.symlink(request, folder)
            return {}
    """
    registration = await load(python, source)
    head, _ = await python.call(registration, str(outside))
    assert not head.artifacts
    assert outside.stat().st_mtime > 1 and len(list(outside.iterdir())) == 50
    head, _ = await python.call(registration, "")
    assert head.artifacts


# --- modes of what is shared


async def test_who_takes_everybodys_way_by_chmod_gives_it_back_at_once(own: Bench) -> None:
    python = """
        import os
        def invoke(request):
            for path, mode in request or ():
                os.chmod(path, mode)
            open(os.environ["HOME"] + "/file", "w").close()
            return {"outputs": {"names": os.listdir(os.getcwd())}}
    """
    bash = """
        invoke() {
            local request; request=$(tr -d ' []"' <"$KRUNTIME_REQUEST_FILE")
            for one in ${request//;/ }; do [[ $one == */* ]] && chmod "${one#*=}" "${one%=*}"; done
            echo x >"$HOME/file" && ls >/dev/null && printf '{"outputs":{}}'
        }
    """
    is_bash = own.dialect.name == "bash"
    epoch, attacker = await own.register(
        "", files={"main.sh" if is_bash else "main.py": textwrap.dedent(bash if is_bash else python)}
    )
    neighbour = await load(own, bash if is_bash else python)
    work = own.server.folder
    paths = [work / "runs" / epoch.run_uid / "1", work / "runs" / epoch.run_uid, work / "runs"]
    paths += [work / "logs", own.server.socket]
    exact = {path: path.stat().st_mode for path in paths}
    for path in [*paths, work]:
        for mode in (0, 0o777):
            if path == work and mode:
                continue  # Its owner may open it to others; only what is below is this product's.
            change = f"{path}={mode:o}" if is_bash else [[str(path), mode]]
            try:
                await own.invoke(attacker, change)
            except CallError as error:
                assert error.error.reason == "HandlerFailed"  # It has shut itself out for a moment.
            await until(lambda: all(p.stat().st_mode == exact[p] for p in paths), f"{path} {mode:o}")
            await until(lambda: work.stat().st_mode & 0o700 == 0o700, str(work))
            await own.invoke(neighbour)
            epoch, _ = await own.register("", files={"main.sh": bash, "main.py": textwrap.dedent(python)})
            assert (await own.unregister(epoch)).gone


async def test_without_inotify_modes_are_looked_at_when_something_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runs/uid/1"
    folder.mkdir(parents=True)
    modes = Modes()
    modes.close()
    modes.keep(folder, below=tmp_path)
    (tmp_path / "runs").chmod(0o777)
    folder.chmod(0)
    modes.keep(folder, below=tmp_path)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "runs", folder)] == [0o755, 0o755]
    modes.close()


async def test_what_was_kept_for_one_path_alone_goes_with_it(tmp_path: Path) -> None:
    for name in ("runs/a/1", "runs/a/2"):
        (tmp_path / name).mkdir(parents=True)
    modes, before = Modes(), _descriptors()
    for name in ("runs/a/1", "runs/a/2", "runs/a/1"):
        modes.keep(tmp_path / name, below=tmp_path)
    modes.let_go(tmp_path / "runs/a/1")
    (tmp_path / "runs/a").chmod(0)
    await until(lambda: (tmp_path / "runs/a").stat().st_mode & 0o777 == 0o755, "kept for the other")
    modes.let_go(tmp_path / "runs/a/2")
    assert _descriptors() == before
    modes.close()


# --- the channel

FORGER = """
    import os, struct, time
    def invoke(request):
        for kind, sequence, meta, size in request.get("say", ()):
            meta = meta.encode()
            os.write(3, struct.pack(">BIII", kind, sequence, len(meta), size) + meta + b"1" * size)
        if request.get("say"):
            time.sleep(request.get("sleep", 5))
        return {"outputs": {"pid": os.getpid()}}
"""
STARTED, FAILED, RESULT, ERROR = 10, 11, 12, 13
FAILURE = '{"reason": "x", "message": "y"}'


@pytest.fixture
async def forger(python: Bench) -> AsyncIterator[tuple[Bench, str]]:
    yield python, await load(python, FORGER, concurrency=2)


@pytest.mark.parametrize(
    "message",
    [
        (STARTED, 1, "{}", 0),
        (STARTED, 1, "", 0),
        (FAILED, 1, FAILURE, 0),
        (FAILED, 1, "", 0),
        (RESULT, 99, "", 2),
        (RESULT, 1, "", (1 << 20) + 1),
        (ERROR, 99, FAILURE, 0),
        (ERROR, 1, "", 0),
        (1, 1, "", 0),
    ],
    ids=str,
)
async def test_what_the_protocol_does_not_allow_ends_the_worker(
    forger: tuple[Bench, str], message: tuple[int, int, str, int]
) -> None:
    bench, registration = forger
    async with failing("WorkerCrashed"):
        await bench.invoke(registration, {"say": [message]}, timeout=5)
    # Both slots are there, none more than once, and no call waits for a worker that has one.
    answers = await asyncio.gather(*(bench.invoke(registration, {}, timeout=5) for _ in range(2)))
    assert all(answer["outputs"]["pid"] for answer in answers)
    assert (await bench.client.function_status(registration)).in_flight == 0


async def test_a_worker_that_says_started_again_is_not_given_a_second_call(forger: tuple[Bench, str]) -> None:
    bench, registration = forger
    lost = asyncio.gather(
        *(bench.invoke(registration, {"say": [(STARTED, 1, "{}", 0)]}, timeout=5) for _ in range(2)),
        return_exceptions=True,
    )
    for error in await lost:
        assert isinstance(error, CallError) and error.error.reason == "WorkerCrashed"
    for _ in range(3):
        await asyncio.gather(*(bench.invoke(registration, {}, timeout=5) for _ in range(2)))
    assert (await bench.client.function_status(registration)).in_flight == 0


async def test_a_second_result_of_one_call_is_nobodys(forger: tuple[Bench, str]) -> None:
    bench, registration = forger
    answer = await bench.invoke(registration, {"say": [(RESULT, 1, "", 1), (RESULT, 1, "", 1)], "sleep": 0}, timeout=5)
    assert answer == 1  # It answers for itself, once; what it says later ends it, whomever it serves then.
    lost = 0
    for _ in range(5):
        try:
            assert (await bench.invoke(registration, {}, timeout=5))["outputs"]["pid"]
        except CallError as error:
            assert error.error.reason == "WorkerCrashed", error
            lost += 1
    assert lost <= 1
