"""Sources by git from servers: https with and without a password, ssh with a key, and the cache between fetches."""

import asyncio
import random
from pathlib import Path

import pytest

from dataplane.runtimed.failures import SourceError
from dataplane.runtimed.gitauth import GitAuth
from dataplane.runtimed.gitcache import REPOSITORIES_MAX, GitCache
from dataplane.runtimed.source import Git, materialise
from statemachine.reasons import Reason
from tests.runtimed.gitservers import SSHD, commit, git, https_server, ssh_server

BIG = 50_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the repository `r`, two commits on main."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "r").mkdir()
    git(folder / "r", "init", "--quiet", "--initial-branch=main")
    commit(folder / "r", "VERSION = 1\n")
    git(folder / "r", "tag", "v1")
    (folder / "r" / "big").write_bytes(random.Random(1).randbytes(BIG))
    commit(folder / "r", "VERSION = 2\n")
    return folder


def secret(folder: Path, host: str, **keys: str) -> GitAuth:
    """A credential as it is mounted: nobody but its owner may read a key."""
    mounted = folder / "mounted" / "0"
    mounted.mkdir(parents=True, exist_ok=True)
    for name, value in keys.items():
        path = mounted / {"key": "ssh-privatekey", "ca": "ca.crt"}.get(name, name)
        path.write_text(value)
        path.chmod(0o600)
    return GitAuth.of(host, folder / "mounted")


def version(folder: Path) -> str:
    return (folder / "main.py").read_text().strip()


async def failure(url: str, folder: Path, ref: str = "", auth: GitAuth | None = None) -> str:
    with pytest.raises(SourceError) as caught:
        await materialise(Git(url, ref), folder, auth=auth or GitAuth({}))
    assert caught.value.reason is Reason.SOURCE_FETCH_FAILED
    assert len(caught.value.message.encode()) <= 1024
    return caught.value.message


@pytest.mark.parametrize(("ref", "expected"), [("", "VERSION = 2"), ("main", "VERSION = 2"), ("v1", "VERSION = 1")])
async def test_https_with_the_credential_of_its_host(served: Path, tmp_path: Path, ref: str, expected: str) -> None:
    with https_server(served, user="jane", password="s'ecret") as server:
        host = f"localhost:{server.port}"
        auth = secret(tmp_path, host, username="jane", password="s'ecret", ca=server.ca.read_text())
        await materialise(Git(server.url("r"), ref), tmp_path / "src", auth=auth, cache=GitCache(tmp_path / "cache"))
    assert version(tmp_path / "src") == expected
    assert {path.name for path in (tmp_path / "src").iterdir()} - {"big"} == {"main.py"}


async def test_each_way_in_which_https_fails_is_told_apart(served: Path, tmp_path: Path) -> None:
    with https_server(served, user="jane", password="right") as server:
        url, host = server.url("r"), f"localhost:{server.port}"
        assert "certificate" in await failure(url, tmp_path / "1")
        ca = server.ca.read_text()
        auth = secret(tmp_path / "a", host, ca=ca)
        message = await failure(url, tmp_path / "2", auth=auth)
        assert "asks for a credential" in message and "neither password" in message
        auth = secret(tmp_path / "b", host, ca=ca, password="wrong")
        assert "did not take the credential" in await failure(url, tmp_path / "3", auth=auth)
        auth = secret(tmp_path / "c", host, ca=ca, username="jane", password="right")
        assert "no branch, tag or commit 'nope'" in await failure(url, tmp_path / "4", "nope", auth)
        assert "not found" in await failure(server.url("other"), tmp_path / "5", auth=auth)
        assert "wrong" not in message and "right" not in message
    assert "nothing listens" in await failure(url, tmp_path / "6", auth=auth)
    assert "not known here" in await failure("https://no-such-host.invalid/r", tmp_path / "7")


async def test_a_credential_goes_to_its_own_host_only(served: Path, tmp_path: Path) -> None:
    with https_server(served, user="jane", password="right") as server:
        secret(tmp_path, "git.example.com", username="jane", password="right")
        other = tmp_path / "mounted" / "1"
        other.mkdir()
        (other / "ca.crt").write_text(server.ca.read_text())
        auth = GitAuth.of(f"git.example.com, localhost:{server.port}", tmp_path / "mounted")
        assert "asks for a credential" in await failure(server.url("r"), tmp_path / "src", auth=auth)
        assert server.authorizations == []


@pytest.mark.skipif(SSHD is None, reason="openssh-server is not installed")
async def test_ssh_with_the_key_of_its_host(served: Path, tmp_path: Path) -> None:
    with ssh_server(tmp_path) as server:
        host, url = f"localhost:{server.port}", server.url(served / "r")
        auth = secret(tmp_path / "a", host, key=server.key, known_hosts=server.known_hosts)
        await materialise(Git(url, "v1"), tmp_path / "src", auth=auth)
        assert version(tmp_path / "src") == "VERSION = 1"
        message = await failure(url, tmp_path / "1")
        assert "did not take the credential" in message and "has none for localhost" in message
        other = server.known_hosts.split()[0] + " ssh-ed25519 " + server.key.split()[5][:68]
        auth = secret(tmp_path / "b", host, key=server.key, known_hosts=other)
        assert "another server" in await failure(url, tmp_path / "2", auth=auth)
        auth = secret(tmp_path / "c", host, key=server.key, known_hosts=server.known_hosts)
        message = await failure(server.url(served / "nothing"), tmp_path / "3", auth=auth)
        assert "is no git repository" in message


async def test_what_was_fetched_is_not_fetched_again(served: Path, tmp_path: Path) -> None:
    cache = GitCache(tmp_path / "cache")
    with https_server(served) as server:
        auth = secret(tmp_path, f"localhost:{server.port}", ca=server.ca.read_text())
        head = git(served / "r", "rev-parse", "HEAD")
        for number in range(3):
            await materialise(Git(server.url("r")), tmp_path / f"src-{number}" / "src", auth=auth, cache=cache)
            assert version(tmp_path / f"src-{number}" / "src") == "VERSION = 2"
        first, *later = server.sent
        assert first > BIG > sum(later)
        url = server.url("r")
    # The server is gone: a commit that is there needs none.
    await materialise(Git(url, head), tmp_path / "late" / "src", auth=auth, cache=cache)
    assert version(tmp_path / "late" / "src") == "VERSION = 2"


async def test_a_new_commit_of_a_branch_is_seen_through_the_cache(tmp_path: Path) -> None:
    repository = tmp_path / "r"
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    cache = GitCache(tmp_path / "cache")
    for number in (1, 2, 3):
        commit(repository, f"VERSION = {number}\n")
        await materialise(Git(f"file://{repository}", "main"), tmp_path / str(number) / "src", cache=cache)
        assert version(tmp_path / str(number) / "src") == f"VERSION = {number}"


async def test_many_at_once_share_a_repository_without_mixing(served: Path, tmp_path: Path) -> None:
    cache = GitCache(tmp_path / "cache")
    url = f"file://{served / 'r'}"
    refs = ["v1", "main"] * 5
    sources = [tmp_path / str(number) / "src" for number in range(10)]
    await asyncio.gather(*(materialise(Git(url, ref), at, cache=cache) for ref, at in zip(refs, sources, strict=True)))
    assert [version(at) for at in sources] == ["VERSION = 1", "VERSION = 2"] * 5


async def test_many_read_in_a_repository_at_once_and_who_writes_is_alone(tmp_path: Path) -> None:
    cache, url, seen = GitCache(tmp_path / "cache"), "file:///r", [0, 0]
    async with cache.writing(url):
        pass
    together = asyncio.Barrier(3)

    async def read() -> None:
        async with cache.reading(url) as repository:
            assert repository is not None
            seen[0] += 1
            await together.wait()  # all three are inside
            assert seen[1] == 0
            seen[0] -= 1

    async def write() -> None:
        async with cache.writing(url):
            assert seen == [0, 0]
            seen[1] += 1
            await asyncio.sleep(0)
            seen[1] -= 1

    async with asyncio.timeout(10):
        await asyncio.gather(*(read() for _ in range(3)), write(), write())


async def test_a_checkout_that_fails_condemns_the_repository_and_one_that_is_given_up_does_not(tmp_path: Path) -> None:
    cache, url = GitCache(tmp_path / "cache"), "file:///r"
    async with cache.writing(url):
        pass
    with pytest.raises(asyncio.CancelledError):
        async with cache.reading(url):
            raise asyncio.CancelledError
    async with cache.reading(url) as repository:
        assert repository is not None
    with pytest.raises(ValueError):
        async with cache.reading(url):
            raise ValueError
    async with cache.reading(url) as repository:
        assert repository is None
    async with cache.writing(url) as repository:
        assert list(repository.iterdir())
    async with cache.reading(url) as repository:
        assert repository is not None


async def test_a_damaged_cache_costs_one_fetch_at_most(served: Path, tmp_path: Path) -> None:
    cache, url = GitCache(tmp_path / "cache"), f"file://{served / 'r'}"
    await materialise(Git(url, "main"), tmp_path / "1" / "src", cache=cache)
    [kept] = (tmp_path / "cache").glob("*.git")
    (kept / "shallow.lock").touch()
    with pytest.raises(SourceError, match="shallow"):
        await materialise(Git(url, "v1"), tmp_path / "2" / "src", cache=cache)
    await materialise(Git(url, "v1"), tmp_path / "3" / "src", cache=cache)
    assert version(tmp_path / "3" / "src") == "VERSION = 1"


async def test_the_cache_has_a_bound(served: Path, tmp_path: Path) -> None:
    cache = GitCache(tmp_path / "cache")
    for number in range(REPOSITORIES_MAX + 3):
        async with cache.writing(f"file:///{number}"):
            pass
    assert len(list((tmp_path / "cache").glob("*.git"))) == REPOSITORIES_MAX


async def test_a_fetch_that_takes_too_long_is_ended(served: Path, tmp_path: Path) -> None:
    cache = GitCache(tmp_path / "cache")
    with pytest.raises(SourceError, match=r"took longer than 0\.001 s"):
        await materialise(Git(f"file://{served / 'r'}"), tmp_path / "src", cache=cache, timeout=0.001)
