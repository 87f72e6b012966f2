"""Runs a parent with test targets: `python -m tests.node.system DIR SPECS`, SPECS being JSON of `ProcessSpec`s.

Writes each notice as a line to stdout. The tests start it as a process of its own, since it takes over signals.
"""

import sys
from pathlib import Path

import msgspec

from controlplane.embedded import control
from controlplane.embedded.datadir import open_directory
from controlplane.embedded.parent import Parent
from controlplane.embedded.topology import ProcessSpec


def main() -> int:
    directory = open_directory(Path(sys.argv[1]), api_port=0, gateway_port=0, reset=False)
    directory.make_run_dir()
    specs = msgspec.json.decode(sys.argv[2], type=list[ProcessSpec])

    def observe(notice: control.Notice) -> None:
        sys.stdout.write(f"{notice}\n")
        sys.stdout.flush()

    return Parent(directory, specs, warm=(), version="test", prepare=lambda: None, observe=observe).run()


if __name__ == "__main__":
    sys.exit(main())
