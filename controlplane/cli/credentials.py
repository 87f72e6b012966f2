"""Who the caller is, for a command that makes one HTTPS call without the Kubernetes client.

A token, a client certificate, basic authentication, or what a credential plugin says. `https` and `access` ask here.
"""

import base64
from typing import NamedTuple

from controlplane.cli.failure import NOT_ALLOWED, Failure
from controlplane.kube.kubeconfig import Access, ConfigError


class Credential(NamedTuple):
    """An Authorization header, or a client certificate as files or as PEM."""

    authorization: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    cert_pem: bytes | None = None
    key_pem: bytes | None = None


def credential_of(access: Access) -> Credential:
    """What the kubeconfig's user has. Failure when it cannot be read, or when a plugin refuses."""
    if access.plugin is not None:
        return _ask_plugin(access)
    try:
        token = access.bearer()
    except ConfigError as error:
        raise Failure("ConfigInvalid", str(error)) from error
    authorization = f"Bearer {token}" if token else None
    if authorization is None and access.basic is not None:
        authorization = "Basic " + base64.b64encode(":".join(access.basic).encode()).decode()
    if authorization is not None and not (authorization.isascii() and authorization.isprintable()):
        raise Failure("ConfigInvalid", f"the token for {access.server} holds characters that no token has")
    return Credential(authorization, access.cert_file, access.key_file, access.cert_pem, access.key_pem)


def _ask_plugin(access: Access) -> Credential:
    import asyncio
    import logging

    from controlplane.kube.clock import SystemClock
    from controlplane.kube.plugin import Plugin

    logging.getLogger().addHandler(logging.NullHandler())  # the library logs what it raises as well
    try:
        given = asyncio.run(Plugin(access, SystemClock()).ask())
    except ConfigError as error:
        raise Failure("Unauthenticated", str(error), NOT_ALLOWED) from error
    cert, key = given.certificate or (None, None)
    return Credential(given.authorization, cert, key)
