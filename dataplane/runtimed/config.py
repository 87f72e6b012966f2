"""What one runtimed is told about its Pod: one frozen Struct, read from the environment once and checked in one place.

No defaults hide elsewhere, nothing is read later. Next: `main.py` wires with it.
"""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from dataplane.runtimed.artifactstore import StoreConfig


class ConfigError(Exception):
    """The environment does not describe a Runtime Pod; the message names every wrong variable."""


class Config(Struct, frozen=True, kw_only=True):
    """Who this Pod is, where its neighbours are, and where it may write."""

    namespace: str
    runtime: str
    pod_name: str
    pod_uid: str
    pod_ip: str
    port: int
    socket: Path
    work_dir: Path
    signer_url: str
    ca_file: Path
    token_file: Path
    gateway_url: str
    """Base URL that `status.endpoint.url` starts with; empty when no gateway is installed."""
    kubeconfig: str | None
    service_account_dir: str
    journal_dir: Path | None
    artifacts: StoreConfig | None = None
    """Where artifacts go; None: this Runtime has no store."""
    git_hosts: str = ""
    """Comma list of the hosts that the Runtime has a credential for; the nth has the folder `<n>` of the next."""
    git_credentials_dir: Path = Path("/var/run/secrets/kruntimes-git")
    source_cache_dir: Path | None = None
    """Where fetched repositories are kept; None: nowhere."""


def from_environ(environ: Mapping[str, str]) -> Config:
    """The configuration of this process; raises `ConfigError`."""
    port = environ.get("KRUNTIMES_PORT", "8443")
    journal = environ.get("KRUNTIMES_JOURNAL_DIR", "")
    cache = environ.get("KRUNTIMES_SOURCE_CACHE_DIR", "")
    config = Config(
        namespace=environ.get("POD_NAMESPACE", ""),
        runtime=environ.get("KRUNTIMES_RUNTIME", ""),
        pod_name=environ.get("POD_NAME", ""),
        pod_uid=environ.get("POD_UID", ""),
        pod_ip=environ.get("POD_IP", ""),
        port=int(port) if port.isascii() and port.isdigit() else -1,
        socket=Path(environ.get("KRUNTIMES_SOCKET", "/run/kruntimes/runtime.sock")),
        work_dir=Path(environ.get("KRUNTIMES_WORK_DIR", "/work")),
        signer_url=environ.get("KRUNTIMES_SIGNER_URL", ""),
        ca_file=Path(environ.get("KRUNTIMES_CA_FILE", "/etc/kruntimes/ca.crt")),
        token_file=Path(environ.get("KRUNTIMES_TOKEN_FILE", "/var/run/secrets/kruntimes/token")),
        gateway_url=environ.get("KRUNTIMES_GATEWAY_URL", "").rstrip("/"),
        kubeconfig=environ.get("KUBECONFIG") or None,
        service_account_dir=environ.get(
            "KRUNTIMES_SERVICEACCOUNT_DIR", "/var/run/secrets/kubernetes.io/serviceaccount"
        ),
        journal_dir=Path(journal) if journal else None,
        artifacts=_artifacts(environ),
        git_hosts=environ.get("KRUNTIMES_GIT_HOSTS", ""),
        git_credentials_dir=Path(environ.get("KRUNTIMES_GIT_CREDENTIALS_DIR", "/var/run/secrets/kruntimes-git")),
        source_cache_dir=Path(cache) if cache else None,
    )
    wrong = validate(config)
    if wrong:
        raise ConfigError(" ".join(wrong))
    return config


def _artifacts(environ: Mapping[str, str]) -> StoreConfig | None:
    uri, folder = environ.get("KRUNTIMES_ARTIFACTS_URI", ""), environ.get("KRUNTIMES_ARTIFACTS_DIR", "")
    credentials = environ.get("KRUNTIMES_ARTIFACTS_CREDENTIALS_DIR", "")
    if not uri:
        return None
    return StoreConfig(
        uri=uri.rstrip("/"),
        key=environ.get("KRUNTIMES_ARTIFACTS_KEY", ""),
        folder=Path(folder) if folder else None,
        region=environ.get("KRUNTIMES_ARTIFACTS_REGION", ""),
        endpoint=environ.get("KRUNTIMES_ARTIFACTS_ENDPOINT", ""),
        credentials_dir=Path(credentials) if credentials else None,
    )


def validate(config: Config) -> list[str]:
    """One sentence for each rule that the configuration breaks."""
    wrong = [
        f"{variable} must be set to the Pod's {what}."
        for variable, what, value in (
            ("POD_NAMESPACE", "namespace", config.namespace),
            ("POD_NAME", "name", config.pod_name),
            ("POD_UID", "UID", config.pod_uid),
            ("POD_IP", "address", config.pod_ip),
            ("KRUNTIMES_RUNTIME", "Runtime", config.runtime),
        )
        if not value
    ]
    if not 0 <= config.port <= 65_535:  # 0: any free port, for tests
        wrong.append("KRUNTIMES_PORT must be a port number.")
    if urlsplit(config.signer_url).scheme != "https":
        wrong.append("KRUNTIMES_SIGNER_URL must be an https URL.")
    if config.gateway_url and urlsplit(config.gateway_url).scheme != "https":
        wrong.append("KRUNTIMES_GATEWAY_URL must be an https URL, or empty.")
    if not config.work_dir.is_absolute() or not config.socket.is_absolute():
        wrong.append("KRUNTIMES_WORK_DIR and KRUNTIMES_SOCKET must be absolute paths.")
    store = config.artifacts
    if store is not None:
        scheme = urlsplit(store.uri).scheme
        if scheme not in ("s3", "file") or (scheme == "file") != (store.folder is not None):
            wrong.append("KRUNTIMES_ARTIFACTS_URI must be s3://…, or file://… with KRUNTIMES_ARTIFACTS_DIR.")
        if not store.key:
            wrong.append("KRUNTIMES_ARTIFACTS_KEY must be set with KRUNTIMES_ARTIFACTS_URI.")
    return wrong


def endpoint_url(config: Config, run_uid: str) -> str | None:
    """The URL that invokes this Run through the gateway; None when there is no gateway."""
    if not config.gateway_url:
        return None
    return f"{config.gateway_url}/v1/namespaces/{config.namespace}/runtimes/{config.runtime}/runs/{run_uid}:invoke"
