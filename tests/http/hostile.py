"""Messages that try to be read in two ways, or are none: what a strict server refuses, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

HOST = b"Host: gateway.test\r\n"
# What lets a request be executed, if it is not refused.
CALLER = HOST + b"X-Tenant: t1\r\nIdempotency-Key: hostile\r\n"
TARGET = b"/charges"
SMUGGLED = b"POST /smuggled HTTP/1.1\r\nHost: gateway.test\r\nContent-Length: 0\r\n\r\n"


def message(
    fields: bytes = b"", body: bytes = b"", *, method: bytes = b"POST", target: bytes = TARGET,
    version: bytes = b"HTTP/1.1", caller: bytes = CALLER,
) -> bytes:  # fmt: skip
    """A request that would be executed but for what is changed."""
    return method + b" " + target + b" " + version + b"\r\n" + caller + fields + b"\r\n" + body


def chunked(body: bytes, fields: bytes = b"Transfer-Encoding: chunked\r\n") -> bytes:
    """A request whose body comes in chunks, or in what claims to be some."""
    return message(fields, body)


def _named(kind: str, values: Iterable[bytes], build: Callable[[bytes], bytes]) -> dict[str, bytes]:
    return {f"{kind} {value!r}": build(value) for value in values}


_LENGTHS = (
    b"-2", b"+2", b"0x2", b"2e0", b"2.0", b"2 2", b"2,2", b"2, 2", b"2;2", b"2\x0b", b"\x0b2", b"two", b"\xd9\xa2",
    b"", b"99999999999999999999999", b"18446744073709551616", b"2\x00", b"'2'", b'"2"', b"0 2", b"2_0",
)  # fmt: skip
_CODINGS = (
    b"xchunked", b"chunkedx", b"chunked, chunked", b"chunked, gzip", b"chunked, identity", b"gzip, chunked", b"gzip",
    b"identity", b"deflate, chunked", b"chunked;q=1", b'"chunked"', b"'chunked'", b"\x0bchunked", b"chunked\x0b",
    b"chunked\x00", b"chunked\x7f", b"x, chunked", b"chunk", b"trailers", b"",
)  # fmt: skip
_SIZES = (
    b"g", b"-1", b"+1", b"0x1", b" 1", b"1 1", b"fffffffffffffffff", b"", b"1,1", b"1_0", b"\xd9\xa1", b"1\x00",
    b"1\x0b", b"1.0", b"1\r", b"x1", b"\t1",
    b"ffffffffffffffff", b"8000000000000000", b"1000000000000000", b"00ffffffffffffffff", b"0" * 90 + b"f" * 16,
)  # fmt: skip
_VERSIONS = (
    b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/3.0", b"HTTP/1.10", b"HTTP/1", b"HTTP/11", b"HTTP/1.1 x",
    b"http/1.1", b"HTTP /1.1", b"HTTPS/1.1", b"HTP/1.1", b"HTTP/1.1\t", b"HTTP/-1.1", b"HTTP/1,1", b"HTTP/1.1\x00",
    b"HTTP/",
)  # fmt: skip
_METHODS = (
    b"post", b"Post", b"P\x00ST", b"POST\t", b"P\xc3\x96ST", b"FOO", b"LIST", b"POST/", b"(POST)", b"POST:",
    b"\x16\x03\x01", b"{}", b'"POST"', b"PRI", b"CONNECT", b"POSTPOST",
)  # fmt: skip
# With the caller's fields, each of these would be the protected route's to some service, or is no target.
_TARGETS = (
    b"http://gateway.test/charges", b"http://other.test/charges", b"HTTP://gateway.test/charges", b"//x/charges",
    b"http://a@gateway.test/charges", b"http://a@b@gateway.test/charges", b"http://x\\..\\charges",
    b"http://gateway.test#/charges", b"http://gateway.test|/charges", b"/charges#x", b"/charges#", b"/x/../charges",
    b"/charges/../charges", b"/charges/.", b"/./charges", b"/x/%2e%2e/charges", b"/x/%2E./charges",
    b"/x/..%2fcharges", b"/%2fcharges", b"/charges%2f", b"\\charges", b"/x\\..\\charges", b"/charges;x=y",
    b"/CHARGES", b"/charges%00", b"/charges%20", b"/%20charges", b"/x%252f..%252fcharges", b"*", b"charges",
    b"?charges", b"/charges\x00", b"/char\x01ges", b"/char\x0bges", b"/char\x7fges", b"/char\x80ges", b"/char\xffges",
    b"/char\xc3\xa9ges", b"/char ges", b"gateway.test:80",
)  # fmt: skip
_FIELDS = (
    b"X: a\x00b\r\n", b"X: a\x01b\r\n", b"X: a\x0bb\r\n", b"X: a\x1fb\r\n", b"X: a\x7fb\r\n", b"X: a\rb\r\n",
    b"X: a\nY: b\r\n", b"X: a\r\n b\r\n", b"X: a\r\n\tb\r\n", b"X:\r\n a\r\n", b"X: a\r\n \r\n", b" X: a\r\n",
    b"\tX: a\r\n", b": a\r\n", b"X\r\n", b"X : a\r\n", b"X\t: a\r\n", b"X Y: a\r\n", b"X\x00: a\r\n", b"X\xff: a\r\n",
    b"(X): a\r\n", b"X@: a\r\n", b"X/Y: a\r\n", b"X\n", b"X: a\n", b"\rX: a\r\n", b"X: a\r\r\n", b'"X": a\r\n',
    b"X=Y: a\r\n", b"{X}: a\r\n", b"X: a\x08\r\n", b"=\r\n",
)  # fmt: skip
_REPEATED = (
    b"Host: gateway.test\r\n", b"Host: other.test\r\n", b"host: gateway.test\r\n", b"Idempotency-Key: other\r\n",
    b"idempotency-key: hostile\r\n", b"Idempotency_Key: other\r\n", b"X-Tenant: t2\r\n", b"x-tenant: t1\r\n",
    b"X_Tenant: t2\r\n", b"Authorization: a\r\nAuthorization: b\r\n", b"Content-Type: a/b\r\nContent-Type: c/d\r\n",
    b"Content_Length: 0\r\n", b"Transfer_Encoding: chunked\r\n", b"CONTENT_LENGTH: 5\r\n", b"Content_Type: a/b\r\n",
    b"Connection: Idempotency-Key\r\n", b"Connection: close, X-Tenant\r\n", b"Connection: host\r\n",
    b"Connection: content-length\r\n", b"Connection: Transfer-Encoding\r\n", b"Connection: Authorization\r\n",
    b"Content-Encoding: gzip\r\nContent-Encoding: br\r\n", b"Authorization_: a\r\nHost_: b\r\nHost: c\r\n",
)  # fmt: skip
_HOSTS = (
    b"", b"Host: a, b\r\n", b"Host: a/b\r\n", b"Host: u@a\r\n", b"Host: a b\r\n", b"Host: a#b\r\n", b"Host: a?b\r\n",
    b"Host: a:b\r\n", b"Host: [::1\r\n", b"Host: a\\b\r\n", b"Host: a%2fb\r\n", b"Host: \xff\r\n", b"Host : a\r\n",
    b"Host\r\n",
)  # fmt: skip
_TRAILERS = (
    b"bad\r\n",
    b"X : y\r\n",
    b" X: y\r\n",
    b"X: a\x00\r\n",
    b"X: a\n",
    b": y\r\n",
    b"X: a\r\n b\r\n",
    b"\x00\r\n",
)
_AROUND_CHUNKS = {
    "longer than its size": b"1\r\nab\r\n0\r\n\r\n",
    "shorter than its size": b"3\r\nab\r\n0\r\n\r\n",
    "ended by a line feed": b"1\r\na\n0\r\n\r\n",
    "bare line feeds": b"1\na\n0\n\n",
    "ended by a carriage return": b"1\r\na\r0\r\n\r\n",
    "no end of the last one": b"1\r\na\r\n0\r\nX\r\n",
    "extension with NUL": b"1;a=\x00\r\na\r\n0\r\n\r\n",
    "extension with a line feed": b"1;a=b\na\r\n0\r\n\r\n",
}

# Each of them is refused, and the connection closed, wherever it is cut.
REFUSED: dict[str, bytes] = {
    **_named("length", _LENGTHS, lambda value: message(b"Content-Length: " + value + b"\r\n", b"{}")),
    **_named("coding", _CODINGS, lambda value: chunked(b"0\r\n\r\n", b"Transfer-Encoding: " + value + b"\r\n")),
    **_named("chunk size", _SIZES, lambda value: chunked(value + b"\r\na\r\n0\r\n\r\n")),
    **_named("version", _VERSIONS, lambda value: message(version=value)),
    **_named("method", _METHODS, lambda value: message(method=value)),
    **_named("target", _TARGETS, lambda value: message(target=value)),
    **_named("field", _FIELDS, message),
    **_named("once only", _REPEATED, message),
    **_named("host", _HOSTS, lambda value: message(caller=value + CALLER.removeprefix(HOST))),
    **_named("trailer", _TRAILERS, lambda value: chunked(b"1\r\na\r\n0\r\n" + value + b"\r\n")),
    **{f"chunk {name}": chunked(body) for name, body in _AROUND_CHUNKS.items()},
    "two lengths": message(b"Content-Length: 2\r\nContent-Length: 3\r\n", b"{} "),
    "two equal lengths": message(b"Content-Length: 2\r\ncontent-length: 2\r\n", b"{}"),
    "length and coding": chunked(b"0\r\n\r\n", b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
    "coding and length": chunked(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
    "coding and no length": chunked(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n"),
    "two codings": chunked(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
    "coding after another": chunked(b"0\r\n\r\n", b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"),
    "coding before another": chunked(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n"),
    "coding with a space before its colon": chunked(b"0\r\n\r\n", b"Transfer-Encoding : chunked\r\n"),
    "folded coding": chunked(b"0\r\n\r\n", b"Transfer-Encoding:\r\n chunked\r\n"),
    "coding in HTTP/1.0": chunked(b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "nothing but line feeds": message().replace(b"\r\n", b"\n"),
    "nothing but carriage returns": message().replace(b"\r\n", b"\r"),
    "a line without a version": b"POST /charges\r\n\r\n",
    "a line without a target": b"POST HTTP/1.1\r\n" + CALLER + b"\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
    "garbage": bytes(range(256)),
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "an empty name between lines": message(b"\r\n: x\r\n")[:-2] + b"\x00",
}
# Each of these is refused with 431 or 414.
TOO_BIG: dict[str, bytes] = {
    "field": message(b"X: " + b"a" * 70_000 + b"\r\n"),
    "name": message(b"X" * 70_000 + b": a\r\n"),
    "target": message(target=b"/" + b"a" * 70_000),
    "query": message(target=b"/charges?" + b"a" * 70_000),
    "path": message(target=b"/" + b"a" * 9_000),
    "path in another form": message(target=b"http://h/" + b"a" * 9_000),
    "head": message(b"".join(b"X-%d: %b\r\n" % (number, b"a" * 1_000) for number in range(70))),
    "number of fields": message(b"X: a\r\n" * 200),
    "number of short fields": message(b"X:\r\n" * 20_000),
}
