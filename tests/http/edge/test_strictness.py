"""Rule 2: what is ambiguous, and which other operations a target may be read as."""

from __future__ import annotations

import pytest

from gateway.core.message import Headers, IndexedHeaders, RequestHead
from gateway.core.spelling import readings
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


@pytest.mark.parametrize(
    "target",
    [
        b"/v1/payments", b"//v1//payments/", b"/v1/payments?next=/../x%2e%2e/\\#"[:-1], b"/v1/%7Euser/a|b/[x]",
        b"/v1/payments/a%2Fb", b"/v1/payments/a;v=1.2", b"/v1/payments/...", b"/v1/payments/.hidden",
        b"/v1/payments/a..b", b"/v1/payments/100%25", b"/v1/payments/caf\xc3\xa9",
    ],
)  # fmt: skip
def test_a_sound_request_passes(target: bytes) -> None:
    """What has one reading is nobody's business here, however it is spelt."""
    assert ambiguity(head(target), ONCE) is None


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        (b"http://other.test/v1/payments", "not a path"),
        (b"other.test:443", "not a path"),
        (b"*", "not a path"),
        (b"/v1/payments#x", "fragment"),
        (b"/v1/pay\x01ments", "control character"),
        (b"/v1\\payments", "backslash"),
        (b"/v1/x/../payments", ". or .. segment"),
        (b"/v1/./payments", ". or .. segment"),
        (b"/v1/payments/..", ". or .. segment"),
        (b"/v1/x/%2e%2E/payments", ". or .. segment"),
        (b"/v1/x/.%2e/payments", ". or .. segment"),
        (b"/v1/x/..%2fpayments", ". or .. segment"),
        (b"/v1/x/..%5Cpayments", ". or .. segment"),
        (b"/v1/x/%252e%252e/payments", ". or .. segment"),
        (b"/v1/x/..;a=b/payments", ". or .. segment"),
        (b"/v1/x/.;/payments", ". or .. segment"),
        (b"/v1/payments%00.html", "escaped NUL"),
    ],
)
def test_an_ambiguous_target_is_a_fault(target: bytes, fault: str) -> None:
    """A service that resolves, decodes or cuts off more than others must not arrive at another operation."""
    assert fault in (ambiguity(head(target), ONCE) or "")


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


@pytest.mark.parametrize(
    ("value", "is_host"),
    [
        (b"gateway.test", True), (b"gateway.test:80", True), (b"[::1]:8080", True), (b"127.0.0.1", True), (b"", True),
        (b"a, b", False), (b"user@host", False), (b"host/path", False), (b"host:80:81", False), (b"host?x", False),
        (b"a b", False), (b"%67ateway.test", False),
    ],
)  # fmt: skip
def test_host_is_a_host(value: bytes, is_host: bool) -> None:
    """Anything that could be cut in two places is refused."""
    assert (ambiguity(head(headers=((b"Host", value),)), ONCE) is None) == is_host


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


def test_a_route_may_itself_use_underscores() -> None:
    """A field that the route spells with `_` is the route's; the other spelling of it is the imposter."""
    once = frozenset((b"x_tenant",))
    assert ambiguity(head(headers=((b"X_Tenant", b"t"),)), once) is None
    assert ambiguity(head(headers=((b"X_Tenant", b"t"), (b"X_Tenant", b"t"))), once) is not None


@pytest.mark.parametrize(
    ("version", "headers", "fault"),
    [
        ((1, 1), (), None),
        ((1, 0), (), None),
        ((1, 1), ((b"Transfer-Encoding", b"Chunked"),), None),
        ((2, 0), (), "version"),
        ((0, 9), (), "version"),
        ((1, 0), ((b"Transfer-Encoding", b"chunked"),), "HTTP/1.0"),
        ((1, 1), ((b"Transfer-Encoding", b"gzip, chunked"),), "transfer coding"),
        ((1, 1), ((b"Transfer-Encoding", b"chunked"), (b"Transfer-Encoding", b"chunked")), "transfer coding"),
        ((1, 1), ((b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"3")), "exclude"),
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
    ],
)
def test_a_lenient_service_reads_another_path(target: bytes, reading: bytes) -> None:
    """Those readings are offered, so that none of them slips past its route."""
    assert reading in readings(target)[0]


@pytest.mark.parametrize("target", [b"/v1/payments", b"/static/a.b/c~d?q=%2F;x\\", b"*", b"/a%20b", b"/a/b/"])
def test_an_ordinary_target_has_one_reading(target: bytes) -> None:
    """A query is not a path."""
    assert [len(each) for each in readings(target)] == [1, 0]


def test_a_target_may_name_its_own_host() -> None:
    """The authority in the target outranks Host (RFC 9112 section 3.2.2), and two slashes begin one."""
    assert readings(b"http://user@pay.test:80/v1/payments?x") == ({b"/v1/payments"}, {b"pay.test:80"})
    assert readings(b"http://pay.test") == ({b"/"}, {b"pay.test"})
    assert readings(b"//u@pay.test/x") == ({b"/u@pay.test/x", b"/x"}, {b"pay.test"})


def test_a_fault_repeats_nothing_that_was_sent() -> None:
    """What an attacker sends does not come back in an answer."""
    fault = ambiguity(head(b"/../<script>"), ONCE) or ""
    assert "script" not in fault
