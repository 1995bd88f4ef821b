"""Rule 2: what is ambiguous, and which other operations a target may be read as."""

from __future__ import annotations

import pytest

from gateway.core.message import Headers, IndexedHeaders, RequestHead
from gateway.core.routing import readings
from gateway.http.handler import ReservedHeaders
from gateway.protect.ambiguity import ambiguity, framing_fault

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
    b"/v1/payments", b"//v1//payments/", b"/v1/payments?next=/../x%2e%2e/\\", b"/v1/%7Euser/a|b/[x]",
    b"/v1/payments/a%2Fb", b"/v1/payments/a;v=1.2", b"/v1/payments/...", b"/v1/payments/.hidden",
    b"/v1/payments/a..b", b"/v1/payments/100%25", b"/v1/payments/caf\xc3\xa9",
)  # fmt: skip


@pytest.mark.parametrize("target", SOUND_TARGETS)
def test_a_sound_request_passes(target: bytes) -> None:
    """What has one reading is nobody's business here, however it is spelt; a route may itself use underscores."""
    assert ambiguity(head(target), ONCE) is None
    once = frozenset((b"x_tenant",))
    assert ambiguity(head(headers=((b"X_Tenant", b"t"),)), once) is None
    assert ambiguity(head(headers=((b"X_Tenant", b"t"), (b"X_Tenant", b"t"))), once) is not None


AMBIGUOUS_TARGETS = {
    "not a path": (b"http://other.test/v1/payments", b"other.test:443", b"*"),
    "fragment": (b"/v1/payments#x",),
    "control character": (b"/v1/pay\x01ments",),
    "backslash": (b"/v1\\payments",),
    "escaped NUL": (b"/v1/payments%00.html",),
    ". or .. segment": (
        b"/v1/x/../payments", b"/v1/./payments", b"/v1/payments/..", b"/v1/x/%2e%2E/payments", b"/v1/x/.%2e/payments",
        b"/v1/x/..%2fpayments", b"/v1/x/..%5Cpayments", b"/v1/x/%252e%252e/payments", b"/v1/x/..;a=b/payments",
        b"/v1/x/.;/payments", b"/../<script>",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("target", "fault"), [(target, fault) for fault, targets in AMBIGUOUS_TARGETS.items() for target in targets]
)
def test_an_ambiguous_target_is_a_fault(target: bytes, fault: str) -> None:
    """A service that resolves, decodes or cuts off more must not arrive at another operation; nothing is repeated."""
    found = ambiguity(head(target), ONCE) or ""
    assert fault in found
    assert "script" not in found


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ((b"authorization", b"Bearer x"), "Authorization is repeated"),
        ((b"IDEMPOTENCY-KEY", b"k"), "Idempotency-Key is repeated"),
        ((b"x-tenant-id", b"t"), "X-Tenant-Id is repeated"),
        ((b"host", b"gateway.test"), "Host is repeated"),
        ((b"content-type", b"text/plain"), "Content-Type is repeated"),
        ((b"Idempotency_Key", b"k"), "spelt in another way than Idempotency-Key"),
        ((b"X_Tenant-Id", b"t"), "spelt in another way than X-Tenant-Id"),
        ((b"Webhook_Id", b"t"), "spelt in another way than Webhook-Id"),
        ((b"Content_Length", b"1"), "spelt in another way than Content-Length"),
        ((b"Transfer_Encoding", b"chunked"), "spelt in another way than Transfer-Encoding"),
        ((b"connection", b"close, X-Tenant-Id"), "Connection names the header X-Tenant-Id"),
        ((b"connection", b"IDEMPOTENCY-KEY"), "Connection names the header Idempotency-Key"),
        ((b"connection", b"Content-Length"), "Connection names the header Content-Length"),
        ((b"connection", b"authorization"), "Connection names the header Authorization"),
        ((b"connection", b"host"), "Connection names the header Host"),
        ((b"X", b"a\x00b"), "control character"),
        ((b"X", b"a\rb"), "control character"),
        ((b"X", b"a\nb"), "control character"),
    ],
)
def test_an_ambiguous_field_is_a_fault(more: tuple[bytes, bytes], fault: str) -> None:
    """Who calls, under which key and for how long has one answer."""
    assert fault in (ambiguity(head(headers=(*SOUND, more)), ONCE) or "")


def test_host_is_a_host() -> None:
    """Anything that could be cut in two places is refused."""
    for value in (b"gateway.test", b"gateway.test:80", b"[::1]:8080", b"127.0.0.1", b""):
        assert ambiguity(head(headers=((b"Host", value),)), ONCE) is None, value
    for value in (b"a, b", b"user@host", b"host/path", b"host:80:81", b"host?x", b"a b", b"%67ateway.test"):
        assert ambiguity(head(headers=((b"Host", value),)), ONCE) is not None, value


def test_a_field_that_is_compared_reaches_the_service_as_it_is_seen() -> None:
    """It may be repeated, but neither be taken away by `Connection` nor be said in the other spelling too."""
    version, compared = (b"Api-Version", b"2"), frozenset((b"api-version",))
    for more, fault in (
        ((b"Api-Version", b"3"), None),
        ((b"Connection", b"API-Version"), "Connection names the header Api-Version."),
        ((b"Api_Version", b"3"), "A header is spelt in another way than Api-Version. Write it like that."),
    ):
        assert ambiguity(head(headers=(version, more)), ONCE, compared) == fault
        assert ambiguity(head(headers=(version, more)), ONCE) is None


CHUNKED = (b"Transfer-Encoding", b"chunked")


@pytest.mark.parametrize(
    ("version", "headers", "fault"),
    [
        ((1, 1), (), None),
        ((1, 0), (), None),
        ((1, 1), ((b"Transfer-Encoding", b"Chunked"),), None),
        ((2, 0), (), "version"),
        ((0, 9), (), "version"),
        ((1, 0), (CHUNKED,), "HTTP/1.0"),
        ((1, 1), ((b"Transfer-Encoding", b"gzip, chunked"),), "transfer coding"),
        ((1, 1), (CHUNKED, CHUNKED), "transfer coding"),
        ((1, 1), (CHUNKED, (b"Content-Length", b"3")), "exclude"),
    ],
)
def test_where_a_request_ends_has_one_answer(version: tuple[int, int], headers: Headers, fault: str | None) -> None:
    """Versions and transfer codings that leave it open are refused everywhere."""
    found = framing_fault(IndexedHeaders(headers), version)
    assert found is None if fault is None else fault in (found or "")


@pytest.mark.parametrize(
    ("target", "reading"),
    [
        (b"/v1/payments;a/b", b"/v1/payments"),
        (b"/v1/x%2f..%5c%2E%2e;x/v1/Payments", b"/v1/payments"),
        (b"/v1/%2570ayments%3f.css", b"/v1/payments"),
        (b"/v1/..%20/x.%0a/", b"/x"),
        (b"/a.php/b.php/c", b"/c"),
        (b"/a.php/b.php/c", b"/b.php/c"),
        (b"http://user@h:80/v1//x?y", b"/v1/x"),
        (b"/x//../y", b"/y"),
        (b"/x//../y", b"/x/y"),
        *[(target, None) for target in (b"/v1/payments", b"/static/a.b/c~d?q=%2F;x\\", b"*", b"/a%20b", b"/a/b/")],
    ],
)
def test_a_lenient_service_reads_another_path(target: bytes, reading: bytes | None) -> None:
    """Those readings are offered, so that none of them slips past its route; an ordinary target has one."""
    found = readings(target)
    assert [len(each) for each in found] == [1, 0] if reading is None else reading in found[0]


def test_a_target_may_name_its_own_host() -> None:
    """The authority in the target outranks Host (RFC 9112 section 3.2.2), and two slashes begin one."""
    assert readings(b"http://user@pay.test:80/v1/payments?x") == ({b"/v1/payments"}, {b"pay.test:80"})
    assert readings(b"http://pay.test") == ({b"/"}, {b"pay.test"})
    assert readings(b"//u@pay.test/x") == ({b"/u@pay.test/x", b"/x"}, {b"pay.test"})


RESERVED = ReservedHeaders((b"X-User-Id", b"X-User-Email", b"x-role"))
OTHERS = ((b"Host", b"shop.example"), (b"X-User", b"a"), (b"X-User-Id-2", b"b"), (b"X-Userid", b"c"))


def left(headers: Headers, target: bytes = b"/v1/charges/7", method: bytes = b"GET") -> Headers:
    """What is left of these headers."""
    head = RESERVED.without(RequestHead(method, target, IndexedHeaders((*OTHERS, *headers))))
    assert (head.method, head.target, head.headers[: len(OTHERS)]) == (method, target, OTHERS)
    return tuple(head.headers[len(OTHERS) :])


@pytest.mark.parametrize("method", [b"GET", b"POST", b"OPTIONS", b"PURGE"])
@pytest.mark.parametrize("target", [b"/v1/charges/7?x=1", b"/V1/charges", b"/other", b"*", b"/x/../v1%2fcharges"])
def test_every_request(method: bytes, target: bytes) -> None:
    """Of any method, and at any path: a service may read another one."""
    assert left(((b"X-User-Id", b"victim"), (b"X-Role", b"admin")), target, method) == ()


@pytest.mark.parametrize(
    "name", [b"x-user-id", b"X-USER-ID", b"X_User_Id", b"X-User_Id", b"x.user.id", b"X!User~Id"], ids=bytes.decode
)
def test_spellings(name: bytes) -> None:
    """A service that makes variables of headers takes them for the same."""
    assert left(((name, b"victim"), (b"X-Other", b"c"))) == ((b"X-Other", b"c"),)


def test_a_connection_header() -> None:
    """It cannot have the gateway drop what the authorising service says."""
    assert left(((b"Connection", b"close, X-User-Id,x_user_email"),)) == ((b"Connection", b"close"),)
