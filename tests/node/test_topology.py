"""What processes and containers are told of the machine around them."""

import sys
from pathlib import Path

from controlplane.embedded.topology import container_environment


def test_a_container_does_not_find_the_python_that_kruntimes_is_installed_in() -> None:
    ours = str(Path(sys.prefix) / "bin")
    environ = {"PATH": f"{ours}:/usr/bin:/bin", "TZ": "UTC", "HOME": "/root", "SECRET": "x"}
    seen = container_environment(environ)
    assert set(seen) == {"PATH", "TZ"}
    if sys.prefix != sys.base_prefix:
        assert ours not in seen["PATH"].split(":")


def test_a_container_finds_a_python_where_path_has_none(tmp_path: Path) -> None:
    assert container_environment({"PATH": str(tmp_path)})["PATH"].split(":")[-1] == str(Path(sys.base_prefix) / "bin")
