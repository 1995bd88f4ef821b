"""A certificate authority of the tests' own, and what servers and clients on loopback need from it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509 import GeneralName
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate chain and its key, as PEM files."""

    cert: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context


class Authority:
    """Signs certificates; whoever trusts `ca_file` trusts them."""

    def __init__(self, directory: Path) -> None:
        """`directory` receives the PEM files."""
        self._authority = trustme.CA()
        self._directory = directory
        self._issued = 0
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

    def issue_to(
        self, *names: GeneralName, common_name: str | None = None, days: float = 1.0, usage: str = "client"
    ) -> Certificate:
        """A certificate for a client with these alternative names and no others, valid from yesterday for so long."""
        key = Ed25519PrivateKey.generate()
        signer = x509.load_pem_x509_certificate(self._authority.cert_pem.bytes())
        signed_by = load_pem_private_key(self._authority.private_key_pem.bytes(), None)
        assert isinstance(signed_by, EllipticCurvePrivateKey)
        subject = x509.Name([] if common_name is None else [x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        begin = datetime.now(UTC) - timedelta(days=1)
        builder = x509.CertificateBuilder(signer.subject, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(begin).not_valid_after(begin + timedelta(days=1 + days))
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=common_name is None)
        purpose = ExtendedKeyUsageOID.CLIENT_AUTH if usage == "client" else ExtendedKeyUsageOID.SERVER_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        issued = builder.sign(signed_by, hashes.SHA256())
        self._issued += 1
        certificate = Certificate(
            self._directory / f"client-{self._issued}.pem", self._directory / f"client-{self._issued}.key"
        )
        certificate.cert.write_bytes(issued.public_bytes(Encoding.PEM))
        certificate.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate

    def client_context(self, certificate: Certificate | None = None) -> ssl.SSLContext:
        """A context for a client that trusts this authority and nobody else, and shows this certificate."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if certificate is not None:
            context.load_cert_chain(certificate.cert, certificate.key)
        return context
