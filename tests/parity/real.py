"""Runs the corpus against a real API server: `KUBECONFIG=… python -m tests.parity.real`, and `tests/cluster` does.

Applies `deploy/crds` first and expects no warning for them, then judges every case in a namespace of its own. Prints
the cases whose verdict differs and ends with 1 if there are any. The kubeconfig has a token or a client certificate.
"""

import asyncio
import base64
import os
import ssl
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.parity.cases import load
from tests.parity.judges import CRDS, NAMESPACE, HttpJudge, mismatch

ESTABLISHED_TIMEOUT_S = 30.0


async def compare(config: dict[str, Any]) -> list[str]:
    """Judge every case with the current context of a kubeconfig; what the API server says of the CRDs, and a line for
    each case whose verdict differs."""
    context = next(each["context"] for each in config["contexts"] if each["name"] == config["current-context"])
    cluster = next(each["cluster"] for each in config["clusters"] if each["name"] == context["cluster"])
    user = next(each["user"] for each in config["users"] if each["name"] == context["user"])
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    connector = aiohttp.TCPConnector(ssl=_tls(cluster, user))
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        wrong = await _install(session, cluster["server"])
        judge = HttpJudge(session, cluster["server"])
        for case in load():
            difference = mismatch(case, await judge.judge(case))
            if difference:
                wrong.append(f"{case.name}: {difference}")
    return wrong


async def _install(session: aiohttp.ClientSession, server: str) -> list[str]:
    """Apply the CRDs and make the namespace; returns what the API server said against the CRDs."""
    said: list[str] = []
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await _apply(session, f"{server}/api/v1/namespaces/{NAMESPACE}", namespace)
    for path in sorted(CRDS.glob("*.yaml")):
        crd = yaml.safe_load(path.read_text())
        url = f"{server}/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
        said += [f"{path.name}: {text}" for text in await _apply(session, url, crd)]
        group, plural = crd["spec"]["group"], crd["spec"]["names"]["plural"]
        async with asyncio.timeout(ESTABLISHED_TIMEOUT_S):
            while True:
                async with session.get(f"{server}/apis/{group}/v1alpha1/{plural}") as response:
                    if response.status == 200:
                        break
                await asyncio.sleep(0.1)
    return said


async def _apply(session: aiohttp.ClientSession, url: str, item: dict[str, Any]) -> list[str]:
    # As Helm itself: another name would be in conflict with it at the next installation.
    headers = {"Content-Type": "application/apply-patch+yaml"}
    async with session.patch(f"{url}?fieldManager=helm&force=true", json=item, headers=headers) as response:
        if response.status not in (200, 201):
            return [await response.text()]
        return response.headers.getall("Warning", [])


def _tls(cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=cluster.get("certificate-authority"))
    if "certificate-authority-data" in cluster:
        context.load_verify_locations(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if "client-certificate-data" in user:
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
            pair.flush()
            context.load_cert_chain(pair.name)
    if "client-certificate" in user:
        context.load_cert_chain(user["client-certificate"], user["client-key"])
    return context


def main() -> int:
    """Exit status: 0 when every case is judged alike."""
    wrong = asyncio.run(compare(yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())))
    sys.stdout.write("".join(f"{line}\n" for line in wrong) + f"{len(load())} cases, {len(wrong)} differ\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
