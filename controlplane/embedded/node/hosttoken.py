"""The gateway's token for the signer, kept fresh: on a cluster the kubelet does this with a projected volume.

Lives here: one file, renewed. May not live here: tokens of Pods (`volumes`). `main` runs it next.
"""

import asyncio
import logging
import random
from pathlib import Path
from typing import Final, NoReturn

from controlplane.embedded.credentials import SYSTEM_NAMESPACE
from controlplane.embedded.datadir import write_file
from controlplane.embedded.node.limits import TOKEN_RENEW_AT, WRITE_RETRY_FIRST_SECONDS, WRITE_RETRY_MAX_SECONDS
from controlplane.embedded.topology import GATEWAY, process_token
from controlplane.kube.api import Kube
from controlplane.kube.backoff import Backoff
from controlplane.kube.errors import KubeError

AUDIENCE: Final = "kruntimes"
LIFE_SECONDS: Final = 3_600
"""As long as a projected token lives."""

_log = logging.getLogger(__name__)


async def keep_gateway_token(kube: Kube, data_dir: Path) -> NoReturn:
    """Write the token now and again at 80 % of its life, for ever."""
    backoff = Backoff(WRITE_RETRY_FIRST_SECONDS, WRITE_RETRY_MAX_SECONDS, random.Random())
    while True:
        try:
            await write_gateway_token(kube, data_dir)
            backoff.reset()
            await asyncio.sleep(LIFE_SECONDS * TOKEN_RENEW_AT)
        except (KubeError, OSError) as error:
            _log.warning("the gateway's token was not renewed: %s", error)
            await asyncio.sleep(backoff.next_delay())


async def write_gateway_token(kube: Kube, data_dir: Path) -> None:
    """One renewal. Raises KubeError, OSError; the old token then stays."""
    answer = await kube.create_token(
        SYSTEM_NAMESPACE, "kruntimes-gateway", audiences=(AUDIENCE,), expiration_seconds=LIFE_SECONDS
    )
    write_file(process_token(data_dir, GATEWAY), answer.token.encode())
