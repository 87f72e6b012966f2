"""The command line of `scripts/cluster`: one line per result, errors as one line on stderr."""

import argparse
import fcntl
import sys
from collections.abc import Sequence

from clusterlib import binaries, chart, images, machine, packages
from clusterlib.settings import BINARIES, CACHE, IMAGES, KUBECONFIG, ClusterError


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 it failed or is down."""
    parser = _parser()
    options, for_helm = parser.parse_known_args(argv)
    if for_helm and options.command != "install":
        parser.error(f"unknown arguments: {' '.join(for_helm)}")
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        with (CACHE / "lock").open("w") as lock:
            if options.command != "status":
                fcntl.flock(lock, fcntl.LOCK_EX)
            return _do(options, for_helm)
    except ClusterError as error:
        print(f"scripts/cluster: {error}", file=sys.stderr)
        return 1


def _do(options: argparse.Namespace, for_helm: Sequence[str]) -> int:
    match options.command:
        case "up":
            machine.up()
            print(KUBECONFIG)
        case "down":
            machine.down()
        case "status":
            print("\n".join(machine.status()))
            return 0 if machine.running() else 1
        case "packages":
            for package in packages.install():
                print(f"installed {package}")
        case "load":
            images.load(*options.images)
        case "build":
            names = options.names or [*BINARIES, *IMAGES]
            binaries.ensure(*(name for name in names if name in BINARIES))
            for path in images.build(*(name for name in names if name not in BINARIES)):
                print(path)
        case "install":
            chart.install(for_helm)
        case "uninstall":
            chart.uninstall()
        case "component":
            machine.act(options.name, options.action)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/cluster", description="A real Kubernetes of one node, for tests.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start it and print the path of its kubeconfig; nothing is done if it runs")
    commands.add_parser("down", help="end it and remove everything of it but the cache")
    commands.add_parser("status", help="what runs; exit status 1 unless all does")
    commands.add_parser("packages", help="install what is missing of the Debian packages that it and its images need")
    load = commands.add_parser("load", help="give the node images: ours by name, built when stale, or archives by path")
    load.add_argument("images", nargs="*", metavar="IMAGE")
    build = commands.add_parser("build", help="build the binaries and images that the cache does not have")
    build.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join([*BINARIES, *IMAGES])}")
    text = "load our images, install or upgrade the chart; what else is given goes to helm, such as --set NAME=VALUE"
    commands.add_parser("install", help=text)
    commands.add_parser("uninstall", help="remove the chart's release")
    component = commands.add_parser("component", help="break or mend one component, for tests")
    component.add_argument("name")
    component.add_argument("action", choices=[*machine.ACTIONS, "start"])
    return parser


if __name__ == "__main__":
    sys.exit(main())
