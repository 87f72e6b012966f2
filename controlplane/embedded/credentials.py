"""Identities of the processes on one machine: a token and a kubeconfig each, and the installation's certificates.

Lives here: the files under DIR/tokens, DIR/kubeconfig, DIR/pki. May not live here: what an identity may do (`rbac`).
`parent` calls it before the first fork, since the API server reads the tokens when it starts.

Each process but bootstrap gets an identity of its own. The gateway's and the control plane's are the ServiceAccounts
that they have on a cluster, so the same roles are bound to them.
"""

import base64
import json
import secrets
from pathlib import Path
from typing import Final

import msgspec

from controlplane.embedded.datadir import Config, write_file
from controlplane.embedded.topology import CONTROL_PLANE, GATEWAY, NODE, api_url, process_kubeconfig

ADMIN: Final = "admin"
SYSTEM_NAMESPACE: Final = "kruntimes-system"
NODE_NAME: Final = "local"
TOKEN_BYTES: Final = 32
"""Of randomness in a token: nobody guesses 256 bits."""


class Identity(msgspec.Struct, frozen=True):
    """Who the API server takes the bearer of `token` for."""

    token: str
    user: str
    groups: tuple[str, ...]


def service_account_user(name: str) -> str:
    """The user name of a ServiceAccount of the system namespace."""
    return f"system:serviceaccount:{SYSTEM_NAMESPACE}:{name}"


_SERVICE_ACCOUNT_GROUPS: Final = (
    "system:serviceaccounts",
    f"system:serviceaccounts:{SYSTEM_NAMESPACE}",
    "system:authenticated",
)

PROCESS_USERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    CONTROL_PLANE: (service_account_user("kruntimes-controlplane"), _SERVICE_ACCOUNT_GROUPS),
    GATEWAY: (service_account_user("kruntimes-gateway"), _SERVICE_ACCOUNT_GROUPS),
    NODE: (f"system:node:{NODE_NAME}", ("system:nodes", "system:authenticated")),
}


def prepare(path: Path, config: Config) -> None:
    """Make what is missing: certificates, tokens; and write the kubeconfigs anew (the port may have changed). Tokens
    of an earlier start stay valid. Raises OSError."""
    from controlplane.kube.clock import SystemClock
    from controlplane.pki.ca import create_installation
    from controlplane.pki.steps import finish_in

    if not (path / "pki" / "root.crt").exists():
        create_installation(path / "pki")
    finish_in(path / "pki", clock=SystemClock())
    ca = (path / "pki" / "root.crt").read_bytes()
    admin = path / "tokens" / ADMIN
    if not admin.exists():
        write_file(admin, secrets.token_urlsafe(TOKEN_BYTES).encode())
    write_file(path / "kubeconfig", kubeconfig(config, ca, ADMIN, admin.read_text()))
    for name, (user, groups) in PROCESS_USERS.items():
        identity = _identity(path / "tokens" / f"{name}.json", user, groups)
        write_file(process_kubeconfig(path, name), kubeconfig(config, ca, user, identity.token))


def kubeconfig(config: Config, ca: bytes, user: str, token: str) -> bytes:
    """A kubeconfig for this machine's API server. JSON, which every reader of YAML reads."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "kruntimes",
                "cluster": {
                    "server": api_url(config),
                    "certificate-authority-data": base64.b64encode(ca).decode(),
                },
            }
        ],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "kruntimes", "context": {"cluster": "kruntimes", "user": user, "namespace": "default"}}],
        "current-context": "kruntimes",
    }
    return json.dumps(document, indent=2).encode() + b"\n"


def _identity(file: Path, user: str, groups: tuple[str, ...]) -> Identity:
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Identity)
        if (found.user, found.groups) == (user, groups):
            return found
    except (FileNotFoundError, msgspec.MsgspecError):
        pass  # made anew below: a damaged file is of no use to the API server either
    identity = Identity(secrets.token_urlsafe(TOKEN_BYTES), user, groups)
    write_file(file, msgspec.json.encode(identity))
    return identity
