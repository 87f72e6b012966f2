"""Writes the files that are generated from code, or with --check says which are stale."""

import sys
from collections.abc import Iterator
from pathlib import Path

import image_locks
import yaml

from controlplane.kube import crd
from dataplane.gateway import openapi
from statemachine import diagram

ROOT = Path(__file__).parent.parent


def generated() -> Iterator[tuple[Path, str]]:
    """Every generated file with its content."""
    for name, text in crd.render().items():
        yield ROOT / "deploy" / "crds" / name, text
        yield ROOT / "deploy" / "chart" / "crds" / name, text
    yield ROOT / "docs" / "lifecycle.md", diagram.lifecycle_markdown()
    yield ROOT / "docs" / "reasons.md", diagram.reasons_markdown()
    yield ROOT / "docs" / "gateway-openapi.yaml", yaml.safe_dump(openapi.document(), sort_keys=False, width=120)
    yield from image_locks.render()


def main() -> int:
    """Write or check; exit 1 when something is stale."""
    check = "--check" in sys.argv[1:]
    stale = [(path, text) for path, text in generated() if not path.exists() or path.read_text() != text]
    for path, text in stale:
        print(f"{'stale' if check else 'wrote'}: {path.relative_to(ROOT)}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
