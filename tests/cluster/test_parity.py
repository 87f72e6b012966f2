"""A4: the real API server judges the corpus of manifests as the embedded one does, and takes our CRDs in silence."""

import pytest
import yaml

from tests.cluster.kit import KUBECONFIG, Cluster
from tests.parity.judges import NAMESPACE
from tests.parity.real import compare


@pytest.mark.timeout(300)
async def test_the_corpus_is_accepted_and_refused_as_by_the_embedded_server_and_the_crds_without_warning(
    cluster: Cluster,
) -> None:
    try:
        assert await compare(yaml.safe_load(KUBECONFIG.read_text())) == []
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
