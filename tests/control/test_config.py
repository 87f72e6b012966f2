"""The control plane's configuration: what is read, and one sentence for what cannot be used."""

from pathlib import Path

import pytest

from controlplane.config import Address, Config, ConfigError

GOOD = {"KRUNTIMES_PKI_DIR": "/pki", "KRUNTIMES_SIGNER_URL": "https://signer.kruntimes-system.svc:8444"}


def test_defaults():
    assert Config.read(GOOD) == Config(
        pki_dir=Path("/pki"),
        signer_bind=Address("0.0.0.0", 8444),
        signer_url="https://signer.kruntimes-system.svc:8444",
        gateway_url="",
        daemon_image="kruntimes/runtimed",
        journal_dir=None,
        metrics_bind=None,
    )


def test_everything_set():
    config = Config.read(
        GOOD
        | {
            "KRUNTIMES_SIGNER_BIND": "[::]:0",
            "KRUNTIMES_GATEWAY_URL": "https://gateway:18443/",
            "KRUNTIMES_IMAGE_RUNTIMED": "mine/runtimed:1",
            "KRUNTIMES_JOURNAL_DIR": "/j",
            "KRUNTIMES_METRICS_BIND": "127.0.0.1:9090",
            "KRUNTIMES_SOURCE_CACHE": "/var/cache/kruntimes/",
        }
    )
    assert config.source_cache == "/var/cache/kruntimes"
    assert config.signer_bind == Address("::", 0)
    assert config.gateway_url == "https://gateway:18443"
    assert config.journal_dir == Path("/j")
    assert config.metrics_bind == Address("127.0.0.1", 9090)
    assert config.signer_hosts == ("signer.kruntimes-system.svc", "localhost", "127.0.0.1", "::1")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("KRUNTIMES_PKI_DIR", "", "KRUNTIMES_PKI_DIR must name the folder with the installation's certificates"),
        ("KRUNTIMES_SIGNER_URL", "", "KRUNTIMES_SIGNER_URL must be https://HOST[:PORT], not ''"),
        ("KRUNTIMES_SIGNER_URL", "http://x", "KRUNTIMES_SIGNER_URL must be https://HOST[:PORT], not 'http://x'"),
        (
            "KRUNTIMES_GATEWAY_URL",
            "https://x/p",
            "KRUNTIMES_GATEWAY_URL must be https://HOST[:PORT], not 'https://x/p'",
        ),
        (
            "KRUNTIMES_GATEWAY_URL",
            "https://x:y",
            "KRUNTIMES_GATEWAY_URL must be https://HOST[:PORT], not 'https://x:y'",
        ),
        ("KRUNTIMES_SIGNER_BIND", "8444", "KRUNTIMES_SIGNER_BIND must be HOST:PORT, not '8444'"),
        ("KRUNTIMES_METRICS_BIND", "x:99999", "KRUNTIMES_METRICS_BIND must be HOST:PORT, not 'x:99999'"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_sentence(name: str, value: str, sentence: str):
    with pytest.raises(ConfigError) as refused:
        Config.read(GOOD | {name: value})
    assert str(refused.value) == sentence
