"""The process's configuration: one frozen struct, checked once.

Lives here: reading the environment. May not live here: creating files. `main.py` uses it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

_DEFAULT_BIND: Final = "127.0.0.1:16443"
_PACKAGE: Final = Path(__file__).resolve().parents[2]
"""The folder of the package `controlplane`: beside it lies `deploy` in a checkout, inside it `_data` in a wheel."""


class ConfigError(ValueError):
    """One sentence that says which variable is wrong and why."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Where data lies and where to listen. Port 0 takes any free one."""

    data_dir: Path
    pki_dir: Path
    crd_dir: Path
    host: str = "127.0.0.1"
    port: int = 16443

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Config":
        """Raises ConfigError."""
        data = environ.get("KRUNTIMES_DATA_DIR", "")
        if not data:
            raise ConfigError("KRUNTIMES_DATA_DIR is not set: it names the folder that holds the state")
        host, _, port = environ.get("KRUNTIMES_API_BIND", _DEFAULT_BIND).rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ConfigError("KRUNTIMES_API_BIND is not host:port")
        crds = environ.get("KRUNTIMES_CRD_DIR", "")
        config = cls(
            data_dir=Path(data),
            pki_dir=Path(environ.get("KRUNTIMES_PKI_DIR") or Path(data) / "pki"),
            crd_dir=Path(crds) if crds else packaged_crd_dir(),
            host=host.strip("[]"),
            port=int(port),
        )
        config.validate()
        return config

    def validate(self) -> None:
        """One sentence for each rule."""
        if not self.crd_dir.is_dir():
            raise ConfigError(f"the folder of CRDs {self.crd_dir} does not exist (KRUNTIMES_CRD_DIR)")


def packaged_crd_dir() -> Path:
    """The CRDs that came with the program."""
    packaged = _PACKAGE / "_data" / "crds"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "deploy" / "crds"
