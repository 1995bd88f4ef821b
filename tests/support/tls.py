"""A certificate authority of the tests' own, and what servers and clients on loopback need from it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate chain and its key, as PEM files."""

    cert: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        """A context for a server with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context


class Authority:
    """Signs certificates; whoever trusts `ca_file` trusts them."""

    def __init__(self, directory: Path) -> None:
        """`directory` receives the PEM files."""
        self._authority = trustme.CA()
        self._directory = directory
        self.ca_file = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca_file))

    def issue(self, *names: str) -> Certificate:
        """A certificate for these host names or addresses, the first one naming its files."""
        names = names or ("localhost", "127.0.0.1")
        issued = self._authority.issue_cert(*names)
        certificate = Certificate(self._directory / f"{names[0]}.pem", self._directory / f"{names[0]}.key")
        certificate.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(certificate.key))
        return certificate

    def client_context(self) -> ssl.SSLContext:
        """A context for a client that trusts this authority and nobody else."""
        return ssl.create_default_context(cafile=self.ca_file)
