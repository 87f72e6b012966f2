"""The few requests to the cluster's API server that bringing it up needs, with the administrator's certificate."""

import http.client
import json
import ssl
from typing import Any, Final

from clusterlib.components import PKI
from clusterlib.settings import API_PORT, NODE_IP, ClusterError

TIMEOUT_S: Final = 10.0


def request(method: str, path: str, body: object | None = None) -> tuple[int, Any]:
    """Status and decoded body (text where it is no JSON). Raises OSError while nobody answers."""
    context = ssl.create_default_context(cafile=str(PKI / "ca.crt"))
    context.load_cert_chain(PKI / "admin.crt", PKI / "admin.key")
    connection = http.client.HTTPSConnection(NODE_IP, API_PORT, timeout=TIMEOUT_S, context=context)
    try:
        headers = {"Content-Type": "application/apply-patch+yaml"} if body is not None else {}
        connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
        answer = connection.getresponse()
        content = answer.read()
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()
    try:
        return answer.status, json.loads(content)
    except ValueError:
        return answer.status, content.decode("utf-8", "replace")


def apply(path: str, obj: dict[str, Any]) -> None:
    """Server-side apply of one object at its path. Raises ClusterError with the answer."""
    status, answer = request("PATCH", f"{path}?fieldManager=scripts-cluster&force=true", obj)
    if status >= 300:
        raise ClusterError(f"the API server refused {path}: {answer}")


def answers(path: str) -> bool:
    """Whether a health page says 200."""
    try:
        return request("GET", path)[0] == 200
    except OSError:
        return False


def node_ready(name: str) -> bool:
    """Whether the node says that it can take Pods, and the default ServiceAccount that they need is there."""
    try:
        status, node = request("GET", f"/api/v1/nodes/{name}")
        account, _ = request("GET", "/api/v1/namespaces/default/serviceaccounts/default")
    except OSError:
        return False
    conditions = node.get("status", {}).get("conditions", ()) if status == 200 else ()
    return account == 200 and any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
