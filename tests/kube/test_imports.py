"""What importing costs: no process loads the generated model classes."""

import subprocess
import sys


def run(program: str) -> list[str]:
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return out.stdout.split()


def test_importing_the_client_does_not_import_kubernetes_asyncio() -> None:
    program = (
        "import sys, controlplane.kube.client, controlplane.kube.informer, controlplane.kube.translate; "
        "print(sum(name.startswith('kubernetes_asyncio') for name in sys.modules))"
    )
    assert run(program) == ["0"]


def test_connecting_loads_its_pieces_and_no_model_classes() -> None:
    program = (
        "import sys; from controlplane.kube.library import pieces; p = pieces(); "
        "print(p.Configuration.__name__, p.RESTClientObject.__name__, p.KubeConfigLoader.__name__, "
        "sum('client.models' in name for name in sys.modules))"
    )
    assert run(program) == ["Configuration", "RESTClientObject", "KubeConfigLoader", "0"]


def test_the_whole_package_can_still_be_imported_afterwards() -> None:
    program = (
        "from controlplane.kube.library import pieces; pieces(); "
        "import kubernetes_asyncio; print(kubernetes_asyncio.client.CoreV1Api.__name__)"
    )
    assert run(program) == ["CoreV1Api"]


def test_the_types_need_no_network_code() -> None:
    program = (
        "import sys, controlplane.kube.types, controlplane.kube.translate, controlplane.kube.patches; "
        "print('aiohttp' in sys.modules, 'asyncio' in sys.modules, 'yaml' in sys.modules)"
    )
    assert run(program) == ["False", "False", "False"]
