"""Rule 2: what is ambiguous, and which other operations a target may be read as."""

from __future__ import annotations

import pytest

from gateway.core.message import Headers, IndexedHeaders, RequestHead
from gateway.http.handler import ReservedHeaders
from gateway.protect.ambiguity import ambiguity

ONCE = frozenset((b"authorization", b"x-tenant-id", b"webhook-id"))
SOUND: Headers = (
    (b"Host", b"gateway.test:8080"), (b"Authorization", b"Bearer x"), (b"Idempotency-Key", b"k"),
    (b"X-Tenant-Id", b"t"), (b"Connection", b"keep-alive, TE"), (b"X-Other_Name", b"1"), (b"Cookie", b"a=b"),
    (b"X-Repeated", b"1"), (b"X-Repeated", b"2"), (b"X-Bytes", b"tab\there \xff"),
    (b"Content-Type", b"application/json"),
)  # fmt: skip


def head(target: bytes = b"/v1/payments?x=1", headers: Headers = SOUND) -> RequestHead:
    return RequestHead(b"POST", target, IndexedHeaders(headers))


SOUND_TARGETS = (
    b"//v1//payments/", b"/v1/payments?next=/../x%2e%2e/\\", b"/v1/%7Euser/a|b/[x]", b"/v1/payments/...",
    b"/v1/payments/.hidden", b"/v1/payments/a..b", b"/v1/payments/caf\xc3\xa9",
)  # fmt: skip


@pytest.mark.parametrize("target", SOUND_TARGETS)
def test_a_sound_request_passes(target: bytes) -> None:
    """What has one reading is nobody's business here, however it is spelt; a route may itself use underscores."""
    assert ambiguity(head(target), ONCE) is None
    once = frozenset((b"x_tenant",))
    assert ambiguity(head(headers=((b"X_Tenant", b"t"),)), once) is None
    assert ambiguity(head(headers=((b"X_Tenant", b"t"), (b"X_Tenant", b"t"))), once) is not None


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        (b"http://other.test/v1/payments", "not a path"),
        (b"/v1/payments#x", "fragment"),
        (b"/v1/pay\x01ments", "control character"),
        (b"/v1\\payments", "backslash"),
        (b"/v1/payments%00.html", "escaped NUL"),
        (b"/v1/x/../payments", ". or .. segment"),
        (b"/v1/x/%252e%252e/payments", ". or .. segment"),
        (b"/v1/x/..;a=b/payments", ". or .. segment"),
        (b"/../<script>", ". or .. segment"),
    ],
)
def test_an_ambiguous_target_is_a_fault(target: bytes, fault: str) -> None:
    """A service that resolves, decodes or cuts off more must not arrive at another operation; nothing is repeated."""
    found = ambiguity(head(target), ONCE) or ""
    assert fault in found
    assert "script" not in found


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ((b"x-tenant-id", b"t"), "X-Tenant-Id is repeated"),
        ((b"content-type", b"text/plain"), "Content-Type is repeated"),
        ((b"Webhook_Id", b"t"), "spelt in another way than Webhook-Id"),
        ((b"Transfer_Encoding", b"chunked"), "spelt in another way than Transfer-Encoding"),
        ((b"connection", b"close, X-Tenant-Id"), "Connection names the header X-Tenant-Id"),
        ((b"connection", b"IDEMPOTENCY-KEY"), "Connection names the header Idempotency-Key"),
        ((b"X", b"a\x00b"), "control character"),
    ],
)
def test_an_ambiguous_field_is_a_fault(more: tuple[bytes, bytes], fault: str) -> None:
    """Who calls, under which key and for how long has one answer."""
    assert fault in (ambiguity(head(headers=(*SOUND, more)), ONCE) or "")


RESERVED = ReservedHeaders((b"X-User-Id", b"X-User-Email", b"x-role"))
OTHERS = ((b"Host", b"shop.example"), (b"X-User", b"a"), (b"X-User-Id-2", b"b"), (b"X-Userid", b"c"))


def left(*headers: tuple[bytes, bytes]) -> Headers:
    """What is left of these headers beside those that are nobody's."""
    kept = RESERVED.without(head(headers=(*OTHERS, *headers))).headers
    assert kept[: len(OTHERS)] == OTHERS
    return tuple(kept[len(OTHERS) :])


def test_every_request() -> None:
    """What the service takes from the gateway alone comes from no caller."""
    assert left((b"X-User-Id", b"victim"), (b"X-Role", b"admin")) == ()


@pytest.mark.parametrize("name", [b"X_User_Id", b"x.user.id"], ids=bytes.decode)
def test_spellings(name: bytes) -> None:
    """A service that makes variables of headers takes them for the same."""
    assert left((name, b"victim"), (b"X-Other", b"c")) == ((b"X-Other", b"c"),)


def test_a_connection_header() -> None:
    """It cannot have the gateway drop what the authorising service says."""
    assert left((b"Connection", b"close, X-User-Id,x_user_email")) == ((b"Connection", b"close"),)
