"""What one gateway process is told: one frozen Struct, read from the environment once and checked in one place.

No defaults hide elsewhere, nothing is read later. Next: `main` wires with it.
"""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

WORKERS_MAX = 64
ENDPOINT_LAG_CLUSTER_S = 5.0
"""How long after SIGTERM new connections are still taken: kube-proxies learn of an endpoint's end one after another."""


class ConfigError(Exception):
    """The environment does not describe a gateway; the message names every wrong variable."""


class Config(Struct, frozen=True, kw_only=True):
    """Where the gateway listens, who it is, and whom it asks."""

    host: str
    port: int
    metrics_host: str
    metrics_port: int | None
    """None: no metrics are served."""
    signer_url: str
    ca_file: Path
    token_file: Path
    hosts: tuple[str, ...]
    """DNS names and addresses in the certificate: what clients call the gateway."""
    kubeconfig: str | None
    permission: tuple[str, str]
    """(verb, subresource of runs) that a caller needs on the Run."""
    endpoint_lag_s: float
    to_owner: bool
    """Calls go to the Run's owner when its address is known; else to any ready endpoint of the Runtime's Service."""
    share_port: bool
    """Several gateway processes listen on this address, and the kernel deals connections out."""
    workers: int
    """Processes that this one runs; above 1 they share the port, and worker n serves its metrics n ports higher."""


ROUTINGS = ("owner", "service")
PERMISSIONS = {"get runs": ("get", ""), "create runs/invoke": ("create", "invoke")}


def from_environ(environ: Mapping[str, str]) -> Config:
    """The configuration of this process; raises `ConfigError`."""
    kubeconfig = environ.get("KUBECONFIG") or None
    host, port = parse_bind(environ.get("KRUNTIMES_GATEWAY_BIND", "0.0.0.0:8443"))
    metrics = environ.get("KRUNTIMES_METRICS_BIND", "")
    metrics_host, metrics_port = parse_bind(metrics) if metrics else ("", None)
    workers = environ.get("KRUNTIMES_GATEWAY_WORKERS", "1")
    lag = environ.get("KRUNTIMES_ENDPOINT_LAG_SECONDS", "0" if kubeconfig else str(ENDPOINT_LAG_CLUSTER_S))
    config = Config(
        host=host,
        port=-1 if port is None else port,
        metrics_host=metrics_host,
        metrics_port=-1 if metrics and metrics_port is None else metrics_port,
        signer_url=environ.get("KRUNTIMES_SIGNER_URL", ""),
        ca_file=Path(environ.get("KRUNTIMES_CA_FILE", "/etc/kruntimes/ca.crt")),
        token_file=Path(environ.get("KRUNTIMES_TOKEN_FILE", "/var/run/secrets/kruntimes/token")),
        hosts=tuple(host for host in environ.get("KRUNTIMES_GATEWAY_HOSTS", "").replace(" ", "").split(",") if host),
        kubeconfig=kubeconfig,
        permission=PERMISSIONS.get(environ.get("KRUNTIMES_INVOKE_PERMISSION", "get runs"), ("", "")),
        endpoint_lag_s=float(lag) if lag.replace(".", "", 1).isdigit() else -1.0,
        to_owner=environ.get("KRUNTIMES_GATEWAY_ROUTING", "owner") != "service",
        share_port=environ.get("KRUNTIMES_GATEWAY_SHARE_PORT", "") == "1" or workers != "1",
        workers=int(workers) if workers.isascii() and workers.isdigit() else -1,
    )
    wrong = validate(config)
    if environ.get("KRUNTIMES_GATEWAY_ROUTING", "owner") not in ROUTINGS:
        wrong.append(f"KRUNTIMES_GATEWAY_ROUTING must be one of: {', '.join(ROUTINGS)}.")
    if wrong:
        raise ConfigError(" ".join(wrong))
    return config


def of_worker(config: Config, number: int) -> Config:
    """What the worker of that number is told."""
    if not config.metrics_port:
        return config
    return msgspec.structs.replace(config, metrics_port=config.metrics_port + number)


def validate(config: Config) -> list[str]:
    """One sentence for each rule that the configuration breaks."""
    wrong = []
    if not 0 <= config.port <= 65_535:
        wrong.append("KRUNTIMES_GATEWAY_BIND must be address:port.")
    if config.metrics_port is not None and not 0 <= config.metrics_port <= 65_535:
        wrong.append("KRUNTIMES_METRICS_BIND must be address:port, or empty.")
    if not 1 <= config.workers <= WORKERS_MAX:
        wrong.append(f"KRUNTIMES_GATEWAY_WORKERS must be a number from 1 to {WORKERS_MAX}.")
    if config.workers > 1 and config.port == 0:
        wrong.append("KRUNTIMES_GATEWAY_BIND must name a port when there are several workers.")
    if urlsplit(config.signer_url).scheme != "https":
        wrong.append("KRUNTIMES_SIGNER_URL must be an https URL.")
    if not config.hosts:
        wrong.append("KRUNTIMES_GATEWAY_HOSTS must name at least one host that clients call the gateway by.")
    if not config.permission[0]:
        wrong.append(f"KRUNTIMES_INVOKE_PERMISSION must be one of: {', '.join(PERMISSIONS)}.")
    if config.endpoint_lag_s < 0:
        wrong.append("KRUNTIMES_ENDPOINT_LAG_SECONDS must be a number of seconds.")
    return wrong


def parse_bind(bind: str) -> tuple[str, int | None]:
    """`address:port`, an IPv6 address in brackets; None for a port that is none."""
    host, _, port = bind.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port) if port.isascii() and port.isdigit() else None
