"""The command: up, down, status, load, build, component. One line per result, errors as one line on stderr."""

import argparse
import fcntl
import sys
from collections.abc import Sequence

from clusterlib import binaries, images, machine
from clusterlib.settings import BINARIES, CACHE, IMAGES, KUBECONFIG, ClusterError


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 it failed or is down."""
    options = _parser().parse_args(argv)
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        with (CACHE / "lock").open("w") as lock:
            if options.command != "status":
                fcntl.flock(lock, fcntl.LOCK_EX)
            return _do(options)
    except ClusterError as error:
        print(f"scripts/cluster: {error}", file=sys.stderr)
        return 1


def _do(options: argparse.Namespace) -> int:
    match options.command:
        case "up":
            machine.up()
            print(KUBECONFIG)
        case "down":
            machine.down()
        case "status":
            print("\n".join(machine.status()))
            return 0 if machine.running() else 1
        case "load":
            images.load(*options.images)
        case "build":
            names = options.names or [*BINARIES, *IMAGES]
            binaries.ensure(*(name for name in names if name in BINARIES))
            for path in images.build(*(name for name in names if name not in BINARIES)):
                print(path)
        case "component":
            machine.act(options.name, options.action)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/cluster", description="A real Kubernetes of one node, for tests.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start it and print the path of its kubeconfig; nothing is done if it runs")
    commands.add_parser("down", help="end it and remove everything of it but the cache")
    commands.add_parser("status", help="what runs; exit status 1 unless all does")
    load = commands.add_parser("load", help="give the node images: ours by name, built when stale, or archives by path")
    load.add_argument("images", nargs="*", metavar="IMAGE")
    build = commands.add_parser("build", help="build the binaries and images that the cache does not have")
    build.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join([*BINARIES, *IMAGES])}")
    component = commands.add_parser("component", help="break or mend one component, for tests")
    component.add_argument("name")
    component.add_argument("action", choices=[*machine.ACTIONS, "start"])
    return parser


if __name__ == "__main__":
    sys.exit(main())
