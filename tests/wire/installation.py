"""A certificate authority in a temporary folder, and TLS contexts of its identities."""

import ssl
from pathlib import Path

from controlplane.kube.memfiles import memory_file
from controlplane.pki.building import key_pem, new_key
from controlplane.pki.ca import Authority, create_installation
from controlplane.pki.names import Subject


class Installation:
    def __init__(self, folder: Path) -> None:
        create_installation(folder)
        self.authority = Authority.load(folder)
        self.root_pem = self.authority.root_pem.decode()

    def _load(self, context: ssl.SSLContext, subject: Subject) -> ssl.SSLContext:
        key = new_key()
        pair = key_pem(key) + self.authority.issue(key.public_key(), subject)
        with memory_file(pair) as path:
            context.load_cert_chain(path)
        context.load_verify_locations(cadata=self.root_pem)
        return context

    def server_context(self, subject: Subject, *, clients: ssl.VerifyMode = ssl.CERT_REQUIRED) -> ssl.SSLContext:
        context = self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), subject)
        context.verify_mode = clients
        return context

    def client_context(self, subject: Subject | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if subject is None:
            context.load_verify_locations(cadata=self.root_pem)
            return context
        return self._load(context, subject)
