"""Tokens, certificates and plugins that change while the client runs."""

import json
import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web

from controlplane.kube.errors import (
    Unauthorized,
    Unavailable,
)
from controlplane.kube.kubeconfig import ConfigError
from controlplane.kube.resources import CONFIGMAPS
from controlplane.pki import ca
from tests.kit.clock import ManualClock
from tests.kube.apiserver import BadApiServer, answer, config_map, kubeconfig, status
from tests.kube.conftest import Connect

MAPS = "/api/v1/namespaces/default/configmaps"
ONE = f"{MAPS}/one"


async def test_a_rotated_token_is_used(server: BadApiServer, connect: Connect, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")

    async def handler(_: web.Request) -> web.Response:
        return answer(config_map("one", 1))

    server.routes[ONE] = handler
    clock = ManualClock()
    client = await connect(kubeconfig(tmp_path, server.url, user={"tokenFile": "token"}), clock=clock)
    await client.get(CONFIGMAPS, "default", "one")
    token.write_text("second\n")
    clock.advance(1.1)
    await client.get(CONFIGMAPS, "default", "one")
    assert [headers["Authorization"] for _, _, headers in server.seen] == ["Bearer first", "Bearer second"]
    assert server.connections == 1


async def test_a_401_is_tried_once_more_with_a_token_that_changed(
    server: BadApiServer, connect: Connect, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first")

    async def handler(request: web.Request) -> web.Response:
        if request.headers["Authorization"] == "Bearer second":
            return answer(config_map("one", 1))
        return status(401, "Unauthorized", "expired")

    server.routes[ONE] = handler
    client = await connect(kubeconfig(tmp_path, server.url, user={"tokenFile": "token"}), clock=ManualClock())
    with pytest.raises(Unauthorized):
        await client.get(CONFIGMAPS, "default", "one")
    assert len(server.seen) == 1
    token.write_text("second")
    await client.get(CONFIGMAPS, "default", "one")
    assert len(server.seen) == 3


async def test_a_token_file_that_is_away_for_a_moment_changes_nothing(
    server: BadApiServer, connect: Connect, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first")

    async def handler(_: web.Request) -> web.Response:
        return answer(config_map("one", 1))

    server.routes[ONE] = handler
    clock = ManualClock()
    client = await connect(kubeconfig(tmp_path, server.url, user={"tokenFile": "token"}), clock=clock)
    token.unlink()
    clock.advance(1.1)
    await client.get(CONFIGMAPS, "default", "one")
    token.write_text("second")
    clock.advance(1.1)
    await client.get(CONFIGMAPS, "default", "one")
    assert [headers["Authorization"] for _, _, headers in server.seen] == ["Bearer first", "Bearer second"]


async def test_a_replaced_ca_is_trusted_without_a_restart(connect: Connect, tmp_path: Path) -> None:
    async def handler(_: web.Request) -> web.Response:
        return answer(config_map("one", 1))

    def installation(name: str) -> ssl.SSLContext:
        ca.create_installation(tmp_path / name)
        ca.ensure_server_certificate(tmp_path / name, "apiserver", ("127.0.0.1",))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / name / "apiserver.crt", tmp_path / name / "apiserver.key")
        return context

    old = await BadApiServer().start(installation("old"))
    old.routes[ONE] = handler
    trusted = tmp_path / "ca.crt"
    trusted.write_bytes((tmp_path / "old" / "root.crt").read_bytes())
    clock = ManualClock()
    config = kubeconfig(tmp_path, old.url, **{"certificate-authority": "ca.crt"})
    client = await connect(config, clock=clock)
    await client.get(CONFIGMAPS, "default", "one")
    await old.stop()
    new = await BadApiServer().start(installation("new"), port=int(old.url.rsplit(":", 1)[1]))
    new.routes[ONE] = handler
    try:
        with pytest.raises(Unavailable) as caught:
            await client.get(CONFIGMAPS, "default", "one")
        assert not caught.value.sent
        trusted.write_bytes((tmp_path / "new" / "root.crt").read_bytes())
        clock.advance(1.1)
        await client.get(CONFIGMAPS, "default", "one")
    finally:
        await new.stop()


async def test_a_client_certificate_in_the_kubeconfig_is_shown_and_leaves_no_file(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import base64

    folder = tmp_path / "pki"
    ca.create_installation(folder)
    authority = ca.Authority.load(folder)
    ca.ensure_server_certificate(folder, "apiserver", ("127.0.0.1",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "apiserver.crt", folder / "apiserver.key")
    context.load_verify_locations(folder / "root.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    server = await BadApiServer().start(context)

    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        return answer(config_map("one", 1, peer=json.dumps(request.transport.get_extra_info("peercert"))))

    server.routes[ONE] = handler
    key = ca.new_key()
    from controlplane.pki import names

    chain = authority.issue(key.public_key(), names.runtimed("default", "python", "pod-1"), timedelta(hours=1))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))

    def encoded(raw: bytes) -> str:
        return base64.b64encode(raw).decode()

    user = {"client-certificate-data": encoded(chain), "client-key-data": encoded(ca.key_pem(key))}
    config = kubeconfig(tmp_path, server.url, user=user, **{"certificate-authority-data": encoded(authority.root_pem)})
    client = await connect(config)
    try:
        found = await client.get(CONFIGMAPS, "default", "one")
        assert "kruntimes://runtimed/default/python/pod-1" in found.data["peer"]
        assert list(temporary.iterdir()) == []
    finally:
        await client.close()
        await server.stop()


async def test_a_credential_plugin_is_asked_and_asked_again_after_401(
    server: BadApiServer, connect: Connect, tmp_path: Path
) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(
        "#!/bin/sh\n"
        f"echo x >> {tmp_path}/asked\n"
        f"n=$(wc -l < {tmp_path}/asked)\n"
        'echo "{\\"apiVersion\\":\\"client.authentication.k8s.io/v1\\",\\"kind\\":\\"ExecCredential\\",'
        '\\"status\\":{\\"token\\":\\"token-$n\\",\\"expirationTimestamp\\":\\"2999-01-01T00:00:00Z\\"}}"\n'
    )
    plugin.chmod(0o755)
    good = "Bearer token-1"

    async def handler(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") == good:
            return answer(config_map("one", 1))
        return status(401, "Unauthorized", "no")

    server.routes[ONE] = handler
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}}
    client = await connect(kubeconfig(tmp_path, server.url, user=user))
    await client.get(CONFIGMAPS, "default", "one")
    good = "Bearer token-2"
    await client.get(CONFIGMAPS, "default", "one")
    assert len((tmp_path / "asked").read_text().splitlines()) == 2


async def test_a_plugin_that_fails_is_a_configuration_error(
    server: BadApiServer, connect: Connect, tmp_path: Path
) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false"}}
    with pytest.raises(ConfigError, match="credential plugin"):
        await connect(kubeconfig(tmp_path, server.url, user=user))
