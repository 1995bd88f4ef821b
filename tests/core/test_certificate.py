"""Which caller a client's certificate names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import DNSName, GeneralName, RFC822Name, UniformResourceIdentifier
from cryptography.x509.name import NameAttribute, RelativeDistinguishedName
from cryptography.x509.oid import ExtensionOID, NameOID

from gateway.core.identity.caller import ClientCertificate, certificate_name, read_certificate
from gateway.core.identity.key import ScopeMissing, ScopeUnsuitable
from tests.core.rows import rows

KEY = Ed25519PrivateKey.generate()
UNTIL = datetime(2030, 1, 1, tzinfo=UTC)
SPIFFE = UniformResourceIdentifier("spiffe://example.org/ns/shop/sa/orders")


NOBODY = x509.Name([])


def der_of(names: x509.ExtensionType | None, subject: x509.Name = NOBODY) -> bytes:
    """A certificate of these alternative names, signed by itself."""
    builder = x509.CertificateBuilder(subject, subject, KEY.public_key(), 1)
    builder = builder.not_valid_before(UNTIL - timedelta(days=1)).not_valid_after(UNTIL)
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return builder.sign(KEY, None).public_bytes(Encoding.DER)


def read(*names: GeneralName, subject: x509.Name = NOBODY) -> ClientCertificate:
    found = x509.SubjectAlternativeName(names) if names else None
    certificate = read_certificate(der_of(found, subject))
    assert certificate is not None
    return certificate


def common(name: str, **options: object) -> NameAttribute:
    return NameAttribute(NameOID.COMMON_NAME, name, **options)  # type: ignore[arg-type]


def test_the_first_kind_of_names_counts() -> None:
    """URI before DNS before e-mail; what else is there changes nothing, and each kind is a caller of its own."""
    uri = certificate_name(read(SPIFFE), "san")
    assert certificate_name(read(DNSName("a.example"), DNSName("b.example"), SPIFFE), "san") == uri
    dns = certificate_name(read(DNSName("a.example")), "san")
    assert certificate_name(read(RFC822Name("x@a.example"), DNSName("A.example")), "san") == dns
    email = certificate_name(read(RFC822Name("a.example@x")), "san")
    as_uri = certificate_name(read(UniformResourceIdentifier("a.example")), "san")
    assert len({uri, dns, email, as_uri}) == 4


@rows(
    "names, kind",
    uri=((SPIFFE, UniformResourceIdentifier("spiffe://example.org/other"), DNSName("a.example")), "URI"),
    dns=((DNSName("a.example"), DNSName("b.example")), "DNS"),
    e_mail=((RFC822Name("a@x"), RFC822Name("b@x")), "e-mail"),
)
def test_two_names_are_nobody(names: tuple[GeneralName, ...], kind: str) -> None:
    """Which of them it is, nobody can say; nor does a certificate without names, or a subject, identify anybody."""
    found = certificate_name(read(*names), "san")
    assert found == ScopeUnsuitable(f"The client certificate has more than one {kind} name.")
    for nameless in (certificate_name(read(), "san"), certificate_name(read(), "subject")):
        assert isinstance(nameless, ScopeMissing)
        assert nameless.is_credential


def test_subjects_are_told_apart() -> None:
    """By every value, its type and its place; the order within one part of a subject means nothing."""
    unit = NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "orders")
    subjects = [
        x509.Name([common("orders")]),
        x509.Name([common("Orders")]),
        x509.Name([unit]),
        x509.Name([unit, common("orders")]),
        x509.Name([common("orders"), unit]),
        x509.Name([RelativeDistinguishedName([unit, common("orders")])]),
    ]
    assert len({read(subject=subject).subject for subject in subjects}) == len(subjects)
    swapped = x509.Name([RelativeDistinguishedName([common("orders"), unit])])
    assert read(subject=swapped).subject == read(subject=subjects[-1]).subject


def test_what_cannot_be_read() -> None:
    """It names nobody, and raises nothing."""
    der = der_of(x509.SubjectAlternativeName([SPIFFE]))
    assert read_certificate(b"") is None
    assert [cut for cut in range(len(der)) if read_certificate(der[:cut]) is not None] == []
    assert read_certificate(der.replace(b"spiffe://", b"spiffe:\xff\xff")) is None
    x_400 = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"\x30\x02\xa3\x00")
    assert read_certificate(der_of(x_400)) is None
