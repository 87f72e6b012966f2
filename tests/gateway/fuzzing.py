"""schemathesis against a running gateway: what docs/gateway-openapi.yaml promises, for requests of every shape.

    scripts/fuzz-gateway [--examples 300]

Starts a system of its own with one function, then asks twice: with any path that the description allows, and with the
path of that function. schemathesis lives in a virtual environment of its own, so that nothing of it is in ours.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any, Final

import yaml

from dataplane.gateway.openapi import INVOKE_PATH, document
from tests.e2e.embedded import Embedded
from tests.e2e.stack import ECHO, function

VERSION: Final = "4.32.5"
HOME: Final = Path.home() / ".cache" / "kruntimes" / f"schemathesis-{VERSION}"
NOT_OURS: Final = ("positive_data_acceptance", "negative_data_rejection")
"""Not asked: a path that matches its pattern names no Run as a rule, and any JSON is a request."""


def schemathesis() -> Path:
    """The command, installed at its first use."""
    command = HOME / "bin" / "schemathesis"
    if not command.exists():
        venv.create(HOME, with_pip=True, clear=True)
        subprocess.run([HOME / "bin" / "pip", "install", "-q", f"schemathesis=={VERSION}"], check=True)
    return command


PATIENT_MS: Final = 10_000
"""A deadline that is shorter may pass, and 504 is then right: asked are answers that are ours."""


def patient() -> dict[str, Any]:
    """The description without deadlines that pass."""
    described = document()
    for parameter in described["paths"][INVOKE_PATH]["post"]["parameters"]:
        if parameter["name"] == "X-Kruntime-Timeout-Ms":
            parameter["schema"]["minimum"] = PATIENT_MS
    return described


def of_one_run(namespace: str, runtime: str, uid: str) -> dict[str, Any]:
    """The description with the path of one Run."""
    described = patient()
    values = {"namespace": namespace, "runtime": runtime, "uid": uid}
    for parameter in described["paths"][INVOKE_PATH]["parameters"]:
        parameter["schema"] = {"type": "string", "enum": [values[parameter["name"]]]}
    return described


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz-gateway", description=__doc__)
    parser.add_argument("--examples", type=int, default=300, help="per operation and phase")
    options = parser.parse_args()
    command = schemathesis()
    with tempfile.TemporaryDirectory(prefix="kruntimes-fuzz-") as folder:
        stack = Embedded(Path(folder) / "data")
        stack.start()
        try:
            created = stack.krt("run", "-f", "-", "--wait", stdin=json.dumps(function("fuzzed", ECHO)))
            assert created.code == 0, created.err
            uid = stack.krt("get", "fuzzed", "-o", "json").json["metadata"]["uid"]
            codes = []
            for described in (of_one_run("default", "python", uid), patient()):
                path = Path(folder) / "openapi.yaml"
                path.write_text(yaml.safe_dump(described))
                arguments = [
                    *("run", str(path), "--url", stack.gateway, "--no-color"),
                    *("--tls-verify", str(stack.directory / "pki" / "root.crt")),
                    *("--header", f"Authorization: Bearer {stack.token()}"),
                    *("--checks", "all", "--exclude-checks", ",".join(NOT_OURS)),
                    *("--max-examples", str(options.examples), "--request-timeout", "40"),
                ]
                codes.append(subprocess.run([command, *arguments], check=False, cwd=folder).returncode)
        finally:
            stack.stop()
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
