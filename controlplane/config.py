"""The control plane's configuration: one frozen struct, read from the environment and checked in one place.

`main` reads it. A `ConfigError` is one line for the user: which variable, and what it should be.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import urlsplit

import msgspec

DAEMON_IMAGE: Final = "kruntimes/runtimed"  # what the embedded node knows; a chart names its own with a tag
PKI_SECRET: Final = "kruntimes-pki"
SYSTEM_NAMESPACE: Final = "kruntimes-system"  # of a control plane that runs in no Pod
SIGNER_BIND: Final = "0.0.0.0:8444"


class ConfigError(Exception):
    """A variable of the environment cannot be used; the message is one sentence."""


class Address(msgspec.Struct, frozen=True):
    """Where to listen. Port 0 takes a free one."""

    host: str
    port: int


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the process reads from outside, but for Kubernetes' own variables."""

    pki_dir: Path
    signer_bind: Address
    signer_url: str
    gateway_url: str = ""  # empty: no gateway is installed, and Runs get no endpoint
    daemon_image: str = DAEMON_IMAGE
    journal_dir: Path | None = None
    metrics_bind: Address | None = None
    source_cache: str = ""  # a folder of each node, for fetched sources; empty: each Pod has its own
    pki_secret: str = ""  # with it the root is kept in this Secret, and `pki_dir` is scratch space in memory
    lease: str = ""  # with it several replicas elect one that decides
    namespace: str = ""  # where that Secret and that Lease are
    identity: str = ""  # of this replica
    network_policy: Literal["", "on", "off"] = ""  # who may reach Runtime Pods; empty: nobody here is a Pod
    logs_bind: Address | None = None  # where the API server finds logs and journals; None: another server has them
    records_bind: Address | None = None  # where the other replicas find this one's journal

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """The configuration in `environ`. Raises ConfigError."""
        pki_dir = environ.get("KRUNTIMES_PKI_DIR", "")
        if not pki_dir:
            raise ConfigError("KRUNTIMES_PKI_DIR must name the folder with the installation's certificates")
        journal_dir = environ.get("KRUNTIMES_JOURNAL_DIR", "")
        metrics_bind = environ.get("KRUNTIMES_METRICS_BIND", "")
        pki_secret, lease = environ.get("KRUNTIMES_PKI_SECRET", ""), environ.get("KRUNTIMES_LEASE", "")
        namespace, identity = environ.get("POD_NAMESPACE", ""), environ.get("POD_NAME", "")
        logs_bind, records_bind = environ.get("KRUNTIMES_LOGS_BIND", ""), environ.get("KRUNTIMES_RECORDS_BIND", "")
        if (pki_secret or lease) and not (namespace and identity):
            raise ConfigError("POD_NAMESPACE and POD_NAME must be set for KRUNTIMES_PKI_SECRET and KRUNTIMES_LEASE")
        if bool(logs_bind) != bool(records_bind):
            raise ConfigError("KRUNTIMES_LOGS_BIND and KRUNTIMES_RECORDS_BIND must be set both or neither")
        return cls(
            pki_dir=Path(pki_dir),
            signer_bind=_address("KRUNTIMES_SIGNER_BIND", environ.get("KRUNTIMES_SIGNER_BIND", "") or SIGNER_BIND),
            signer_url=_base_url("KRUNTIMES_SIGNER_URL", environ.get("KRUNTIMES_SIGNER_URL", "")),
            gateway_url=_base_url("KRUNTIMES_GATEWAY_URL", environ.get("KRUNTIMES_GATEWAY_URL", ""), optional=True),
            daemon_image=environ.get("KRUNTIMES_IMAGE_RUNTIMED", "") or DAEMON_IMAGE,
            journal_dir=Path(journal_dir) if journal_dir else None,
            metrics_bind=_address("KRUNTIMES_METRICS_BIND", metrics_bind) if metrics_bind else None,
            source_cache=_folder("KRUNTIMES_SOURCE_CACHE", environ.get("KRUNTIMES_SOURCE_CACHE", "")),
            pki_secret=pki_secret,
            lease=lease,
            namespace=namespace,
            identity=identity,
            network_policy=_switch("KRUNTIMES_NETWORK_POLICY", environ.get("KRUNTIMES_NETWORK_POLICY", "")),
            logs_bind=_address("KRUNTIMES_LOGS_BIND", logs_bind) if logs_bind else None,
            records_bind=_address("KRUNTIMES_RECORDS_BIND", records_bind) if records_bind else None,
        )

    @property
    def signer_hosts(self) -> tuple[str, ...]:
        """The names under which the signer is reached."""
        host = urlsplit(self.signer_url).hostname
        assert host is not None, "checked when it was read"
        return tuple(dict.fromkeys((host, "localhost", "127.0.0.1", "::1")))


def _address(variable: str, text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{variable} must be HOST:PORT, not {text!r}")
    return Address(host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port))


def _folder(variable: str, text: str) -> str:
    if text and not text.startswith("/"):
        raise ConfigError(f"{variable} must be an absolute path, not {text!r}")
    return text.rstrip("/")


def _switch(variable: str, text: str) -> Literal["", "on", "off"]:
    if text not in ("", "on", "off"):
        raise ConfigError(f"{variable} must be on or off, not {text!r}")
    return text  # type: ignore[return-value]


def _base_url(variable: str, text: str, *, optional: bool = False) -> str:
    if not text and optional:
        return ""
    try:
        parts = urlsplit(text)
        usable = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(f"{variable} must be https://HOST[:PORT], not {text!r}")
    return text.rstrip("/")
