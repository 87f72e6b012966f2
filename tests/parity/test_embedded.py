"""The embedded API server judges every case of the corpus over its own HTTPS, as `real` shows that a cluster does."""

import ssl
from pathlib import Path

import aiohttp

from controlplane.embedded.apiserver.config import Config
from controlplane.embedded.apiserver.main import Running
from tests.parity.cases import load
from tests.parity.judges import CRDS, NAMESPACE, HttpJudge, mismatch


async def test_the_embedded_server_takes_and_refuses_what_the_corpus_says(tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    running = Running(Config(data_dir=tmp_path, pki_dir=pki, crd_dir=CRDS, port=0))
    await running.start()
    try:
        trust = ssl.create_default_context(cafile=str(pki / "root.crt"))
        headers = {"Authorization": f"Bearer {running.admin_token}"}
        server = f"https://127.0.0.1:{running.port}"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust), headers=headers) as session:
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
            async with session.post(f"{server}/api/v1/namespaces", json=namespace) as response:
                assert response.status == 201, await response.text()
            judge = HttpJudge(session, server)
            differ = {
                case.name: difference for case in load() if (difference := mismatch(case, await judge.judge(case)))
            }
    finally:
        await running.stop()
    assert differ == {}
