"""Artifacts: what code leaves in its folder is stored before its end is told, on disk and in a real S3 server."""

import asyncio
import hashlib
import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from obstore.store import S3Store

from controlplane.kube.resources import RUNS
from dataplane.runtimed import serving
from dataplane.runtimed.artifactfiles import ArtifactsRefused, close_files, open_files
from dataplane.runtimed.artifactstore import Store, StoreConfig, UploadFailed
from tests.kit.waiting import eventually
from tests.runtimed.fakes import NAMESPACE
from tests.runtimed.stack import running

KEY = "default/python-uid-1"

PUTS = """
import os, pathlib

def invoke(request, context):
    context.artifacts.put("report/a b.txt", "hello")
    pathlib.Path(os.environ["KRUNTIME_ARTIFACTS_DIR"], "raw.bin").write_bytes(bytes(request["size"]))
    return {"outputs": {"n": 1}, "artifactRefs": [{"name": "own", "uri": "https://example.com/own"}]}
"""
SOMETIMES = """
def invoke(request, context):
    if request.get("put"):
        context.artifacts.put(request["put"], b"x")
    if request.get("fail"):
        raise ValueError("failed")
    if request.get("link"):
        import os
        os.symlink("/etc/passwd", os.path.join(os.environ["KRUNTIME_ARTIFACTS_DIR"], "passwd"))
    return {"outputs": {}}
"""
NESTS = """
def invoke(request, context):
    if request.get("put"):
        context.artifacts.put("x", b"x")
    value = "x" * request.get("size", 0)
    for _ in range(request.get("depth", 0)):
        value = [value]
    return {"outputs": {"x": value}}
"""
TASK = """
import os, sys
folder = os.environ["KRUNTIME_ARTIFACTS_DIR"]
os.mkdir(folder + "/plots")
open(folder + "/plots/ü.svg", "w").write("<svg/>")
open(folder + "/big", "wb").write(b"k" * 20_000_000)
sys.exit(int(os.environ.get("STATUS", "0")))
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of an S3 server with the bucket `things`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=out, stderr=out
        )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        asyncio.run(_made(f"{endpoint}/things", process))
        yield endpoint
    finally:
        process.terminate()
        process.wait(10)


async def _made(bucket: str, process: "subprocess.Popen[bytes]") -> None:
    def made() -> bool:
        assert process.poll() is None, "the S3 server ended"
        try:
            urllib.request.urlopen(urllib.request.Request(bucket, method="PUT"), timeout=20).close()
        except OSError:
            return False
        return True

    await eventually(made, within=40)


def on_disk(folder: Path) -> StoreConfig:
    return StoreConfig(uri=f"file://{folder}", key=KEY, folder=folder)


def in_bucket(endpoint: str, folder: Path) -> StoreConfig:
    folder.mkdir(exist_ok=True)
    (folder / "AWS_ACCESS_KEY_ID").write_text("id\n")
    (folder / "AWS_SECRET_ACCESS_KEY").write_text("secret\n")
    return StoreConfig(uri="s3://things/pre/fix", key=KEY, endpoint=endpoint, credentials_dir=folder)


def content(uri: str, endpoint: str = "") -> bytes:
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).read_bytes()
    bucket = S3Store(
        parts.netloc,
        endpoint=endpoint,
        region="us-east-1",
        access_key_id="id",
        secret_access_key="secret",
        client_options={"allow_http": True},
    )
    return bytes(bucket.get(unquote(parts.path.lstrip("/"))).bytes())


def check(refs: list[dict[str, Any]], expected: dict[str, bytes], endpoint: str = "") -> None:
    assert {ref["name"]: content(ref["uri"], endpoint) for ref in refs} == expected
    for ref in refs:
        data = expected[ref["name"]]
        assert (ref["sizeBytes"], ref["digest"]) == (len(data), "sha256:" + hashlib.sha256(data).hexdigest())


async def _a_life(store: StoreConfig, tmp_path: Path, endpoint: str = "") -> None:
    """A function and a task leave files; both Runs are deleted, and with them what they left."""
    async with running(tmp_path, artifacts=store) as stack:
        [pod] = stack.pods
        stack.seed("f", pod, inline=PUTS)
        await stack.until("f", "Ready")
        reply, body = await stack.invoke(pod, "f", b'{"size": 3}')
        assert reply.status == 200, reply
        answer = json.loads(body)
        own, *stored = answer["artifactRefs"]
        assert answer["outputs"] == {"n": 1} and own == {"name": "own", "uri": "https://example.com/own"}
        check(stored, {"report/a b.txt": b"hello", "raw.bin": bytes(3)}, endpoint)
        _, body = await stack.invoke(pod, "f", b'{"size": 4}')
        assert json.loads(body)["artifactRefs"][1]["uri"] != stored[0]["uri"]

        stack.seed_task("t", pod, inline=TASK)
        await stack.until("t", "Succeeded")
        refs = stack.status("t")["artifactRefs"]
        check(refs, {"plots/ü.svg": b"<svg/>", "big": b"k" * 20_000_000}, endpoint)
        assert all(ref["uri"].startswith(f"{store.uri}/{KEY}/uid-t/1/") for ref in refs)
        assert Store(store).runs() == {"uid-f", "uid-t"}
        for name in ("f", "t"):
            await stack.kube.delete(RUNS, NAMESPACE, name)
        await eventually(lambda: Store(store).runs() == set(), within=20)


async def test_artifacts_go_to_a_folder_and_leave_with_their_run(tmp_path: Path) -> None:
    await _a_life(on_disk(tmp_path / "store"), tmp_path)


async def test_artifacts_go_to_a_bucket_and_leave_with_their_run(tmp_path: Path, s3: str) -> None:
    await _a_life(in_bucket(s3, tmp_path / "secret"), tmp_path, s3)


async def test_what_a_call_left_goes_with_its_own_answer_only(tmp_path: Path) -> None:
    async with running(tmp_path, artifacts=on_disk(tmp_path / "store")) as stack:
        [pod] = stack.pods
        stack.seed("f", pod, inline=SOMETIMES)
        await stack.until("f", "Ready")
        for put in ("a", "b", "a"):
            _, body = await stack.invoke(pod, "f", json.dumps({"put": put}).encode())
            assert [ref["name"] for ref in json.loads(body)["artifactRefs"]] == [put]
        reply, _ = await stack.invoke(pod, "f", b'{"put": "lost", "fail": 1}')
        assert reply.reason == "HandlerFailed"
        _, body = await stack.invoke(pod, "f", b"{}")
        assert json.loads(body) == {"outputs": {}}
        reply, _ = await stack.invoke(pod, "f", b'{"link": 1}')
        assert (reply.status, reply.reason) == (500, "HandlerResultInvalid") and "passwd" in reply.message
        reply, _ = await stack.invoke(pod, "f", b'{"put": "../../up"}')
        assert reply.reason == "HandlerFailed" and "no relative path" in reply.message


async def test_a_result_is_judged_with_artifacts_as_without(tmp_path: Path) -> None:
    """Nested as deeply as a worker may answer, too deeply, and too large only with what is added."""
    async with running(tmp_path, artifacts=on_disk(tmp_path / "store")) as stack:
        [pod] = stack.pods
        stack.seed("f", pod, inline=NESTS)
        await stack.until("f", "Ready")

        async def told(**request: int) -> tuple[int, str]:
            reply, _ = await stack.invoke(pod, "f", json.dumps(request).encode())
            return reply.status, reply.reason

        for depth in (900, 950, 970, 980, 985, 990, 995, 1000, 5000):
            without = await told(depth=depth)
            assert without in ((200, ""), (500, "HandlerResultInvalid"))
            assert await told(depth=depth, put=1) == without, depth
        room = 1024 * 1024 - len('{"outputs":{"x":""}}')
        assert await told(size=room) == (200, "")
        assert await told(size=room, put=1) == (500, "ResponseTooLarge")
        assert await told(put=1) == (200, "")


async def test_a_call_is_answered_whatever_becomes_of_its_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, artifacts=on_disk(tmp_path / "store")) as stack:
        [pod] = stack.pods
        stack.seed("f", pod, inline=SOMETIMES)
        await stack.until("f", "Ready")
        for name in ("with_artifacts", "_failed"):
            with monkeypatch.context() as patch:
                patch.setattr(serving, name, broken)
                reply, _ = await stack.invoke(pod, "f", b'{"put": "a", "fail": %d}' % (name == "_failed"))
            assert (reply.status, reply.reason) == (500, "InternalError")
            assert "ZeroDivisionError" in caplog.text and "ZeroDivisionError" not in reply.message
            caplog.clear()
        reply, _ = await stack.invoke(pod, "f", b'{"put": "a"}')
        assert reply.status == 200


def broken(*_: object) -> bytes:
    raise ZeroDivisionError


async def test_without_a_store_the_reason_is_said(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        [pod] = stack.pods
        stack.seed("f", pod, inline=SOMETIMES)
        await stack.until("f", "Ready")
        reply, _ = await stack.invoke(pod, "f", b'{"put": "a"}')
        assert reply.status == 500 and "ArtifactUploadFailed: the Runtime has no artifactStore" in reply.message
        stack.seed_task("t", pod, inline=TASK)
        await stack.until("t", "Failed")
        assert stack.status("t")["reason"] == "ArtifactUploadFailed"


async def test_a_task_that_fails_keeps_its_artifacts_and_its_reason(tmp_path: Path) -> None:
    async with running(tmp_path, artifacts=on_disk(tmp_path / "store")) as stack:
        [pod] = stack.pods
        stack.seed_task("t", pod, inline=TASK, env=[{"name": "STATUS", "value": "3"}])
        await stack.until("t", "Failed")
        status = stack.status("t")
        assert (status["reason"], status["exitCode"], len(status["artifactRefs"])) == ("TaskFailed", 3, 2)


async def test_what_was_left_of_runs_that_went_meanwhile_is_removed_at_start(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    left = folder / KEY / "uid-long-gone" / "1" / "1-1" / "x"
    left.parent.mkdir(parents=True)
    left.write_text("x")
    other = folder / "default" / "python-of-another-installation" / "uid-theirs" / "x"
    other.parent.mkdir(parents=True)
    other.write_text("x")
    async with running(tmp_path, artifacts=on_disk(folder)):
        await eventually(lambda: not left.exists(), within=10)
    assert other.exists()


def test_a_store_that_says_no_is_quoted(tmp_path: Path, s3: str) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "x").write_text("x")
    files = open_files(tmp_path / "f")
    bucket = in_bucket(s3, tmp_path / "secret")
    wrong = StoreConfig(uri="s3://no-such-bucket", key=KEY, endpoint=s3, credentials_dir=bucket.credentials_dir)
    with pytest.raises(UploadFailed, match="s3://no-such-bucket"):
        Store(wrong).put("uid", "1/1-1", files[0])
    with pytest.raises(ArtifactsRefused, match="URI"):
        Store(StoreConfig(uri="file:///" + "x" * 2048, key=KEY, folder=tmp_path)).put("uid", "1/1-1", files[0])
    close_files(files)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: os.mkfifo(folder / "pipe"), "'pipe' is no regular file"),
        (lambda folder: (folder / "link").symlink_to("/etc"), "link"),
        (lambda folder: (folder / "file").symlink_to("/etc/passwd"), "'file' is no regular file"),
        (lambda folder: (folder / "a\nb").touch(), "control characters"),
        (lambda folder: os.close(os.open(os.fsencode(folder) + b"/\xff", os.O_CREAT)), "not UTF-8"),
        (lambda folder: [(folder / str(number)).touch() for number in range(65)], "more than 64"),
        (lambda folder: os.truncate(os.open(folder / "big", os.O_CREAT | os.O_WRONLY), 300 << 20), "at most 268435456"),
    ],
)
def test_what_is_no_file_within_bounds_is_refused_by_name(tmp_path: Path, make: Any, says: str) -> None:
    make(tmp_path)
    with pytest.raises(ArtifactsRefused, match=says):
        open_files(tmp_path)
