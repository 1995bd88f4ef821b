"""In what two requests differ: each part by name, members by pointer, and nothing that is not known."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from gateway.core.identity.fingerprint import MEMBERS_MAX, BodyForm, Fingerprinter, FingerprintKey, FingerprintSpec
from gateway.core.message import Headers, IndexedHeaders, RequestHead
from gateway.core.operation import Fingerprint
from tests.core.rows import rows

OPERATION = UUID(int=7)
KEY = FingerprintKey("k1", b"0123456789abcdef")
HEADERS: Headers = ((b"Host", b"api.example.com"), (b"Content-Type", b"application/json"), (b"Api-Version", b"1"))
HEAD = RequestHead(b"POST", b"/v1/charges", IndexedHeaders(HEADERS))
BODY = b'{"amount":1000,"card":{"number":"4242","last4":"4242"},"lines":[1,2]}'


def with_header(name: bytes, value: bytes) -> RequestHead:
    kept = tuple(header for header in HEADERS if header[0] != name)
    return replace(HEAD, headers=IndexedHeaders((*kept, (name, value))))


OTHER_VERSION = with_header(b"Api-Version", b"2")


def recorded(fingerprinter: Fingerprinter, body: bytes = BODY) -> Fingerprint:
    """The fingerprint that a record of the operation keeps."""
    digests = fingerprinter.digests(HEAD, body)
    return fingerprinter.with_parts(fingerprinter.alternatives(digests)[0], digests, OPERATION)


def differs(now: Fingerprinter, first: Fingerprint, head: RequestHead = HEAD, body: bytes = BODY) -> list[str]:
    return now.differences(now.digests(head, body), first, OPERATION)


@pytest.mark.parametrize("key", [None, KEY], ids=["unkeyed", "keyed"])
@rows(
    "head, body, expected",
    nothing=(HEAD, BODY, []),
    white_space=(HEAD, BODY.replace(b":1000", b": 1000"), []),
    method=(replace(HEAD, method=b"PUT"), BODY, ["method"]),
    host=(with_header(b"Host", b"other.example.com"), BODY, ["host"]),
    media_type=(with_header(b"Content-Type", b"application/json; v=2"), BODY, ["media_type"]),
    several=(replace(OTHER_VERSION, method=b"PUT"), b"[]", ["method", "header:api-version", "body"]),
)
def test_each_part_is_named(key: FingerprintKey | None, head: RequestHead, body: bytes, expected: list[str]) -> None:
    """Each part that differs is named, in one order, and no other."""
    fingerprinter = Fingerprinter(FingerprintSpec(headers=(b"Api-Version",)), key)
    assert differs(fingerprinter, recorded(fingerprinter), head, body) == expected


@rows(
    "body, expected",
    nested=(BODY.replace(b'"last4":"4242"', b'"last4":"1"'), ["/card/last4"]),
    array=(BODY.replace(b"[1,2]", b"[2,1]"), ["/lines"]),
    added=(BODY.replace(b'"amount"', b'"extra":1,"amount"'), ["/extra"]),
    removed_at_the_top=(BODY.replace(b'"amount":1000,', b""), []),
    removed_below=(BODY.replace(b',"last4":"4242"', b""), ["/card"]),
    escaped=(BODY.replace(b'{"number"', b'{"a/b~c":1,"number"'), ["/card/a~1b~0c"]),
    half_a_character=(BODY.replace(b'{"number"', b'{"\\ud800":1,"number"'), ["/card"]),
    not_printable=(BODY.replace(b'{"number"', b'{"a\\nb":1,"number"'), ["/card"]),
    no_document=(b"not json", []),
)
def test_members_are_named(body: bytes, expected: list[str]) -> None:
    """The innermost members that differ are named; of one that is gone, what held it."""
    fingerprinter = Fingerprinter(FingerprintSpec(explains=True), KEY)
    found = differs(fingerprinter, recorded(fingerprinter), body=body)
    assert found == ["body", *[f"body:{pointer}" for pointer in expected]]


def test_members_within_bounds() -> None:
    """Five levels are four, of many members some are known, and of those nothing false is said."""
    fingerprinter = Fingerprinter(FingerprintSpec(explains=True), KEY)
    deep = b'{"a":{"b":{"c":{"d":{"e":%b}}}}}'
    first = recorded(fingerprinter, body=deep % b"1")
    assert differs(fingerprinter, first, body=deep % b"2") == ["body", "body:/a/b/c/d"]
    names = [b'"m%03d":1' % number for number in range(2 * MEMBERS_MAX)]
    first = recorded(fingerprinter, body=b"{" + b",".join(names) + b"}")
    assert differs(fingerprinter, first, body=b"{" + b",".join(names[1:]) + b"}") == ["body"]
    assert len(first.parts) < 600


def test_only_what_is_compared_is_explained() -> None:
    """What is ignored, or is not among what is compared alone, differs nowhere."""
    ignoring = Fingerprinter(FingerprintSpec(ignore=(("card", "number"),), explains=True), KEY)
    changed = BODY.replace(b'"number":"4242"', b'"number":"1"').replace(b"1000", b"1")
    assert differs(ignoring, recorded(ignoring), body=changed) == ["body", "body:/amount"]
    comparing = Fingerprinter(FingerprintSpec(only=(("card",),), explains=True), KEY)
    assert differs(comparing, recorded(comparing), body=changed) == ["body", "body:/card/number"]


@rows("spec", body=FingerprintSpec(body=BodyForm.RAW), headers=FingerprintSpec(headers=(b"Api-Version",)))
def test_across_recipes_only_what_is_sure_is_said(spec: FingerprintSpec) -> None:
    """Under other settings, method, target and host are still comparable; the rest is not."""
    before, now = Fingerprinter(FingerprintSpec(), KEY), Fingerprinter(spec, KEY)
    assert differs(now, recorded(before), replace(HEAD, target=b"/v1/other"), b"[]") == ["target"]
    assert differs(now, recorded(before), HEAD, b"[]") == []


def test_under_an_unknown_key_nothing_is_said() -> None:
    """A secret that is gone, or is another one under the same name, explains nothing; a retired one does."""
    same, other = Fingerprinter(FingerprintSpec(), KEY), FingerprintKey("k2", b"fedcba9876543210")
    first = recorded(same)
    assert differs(Fingerprinter(FingerprintSpec(), other, [KEY]), first, body=b"[]") == ["body"]
    for unknown in (other, replace(other, key_id="k1")):
        assert differs(Fingerprinter(FingerprintSpec(), unknown), first, body=b"[]") == []
    for parts in (b"", first.parts[:9]):
        assert differs(same, replace(first, parts=parts), body=b"[]") == []


def test_equal_parts_of_two_operations_look_different() -> None:
    """What is kept is short, depends on the operation and on the secret, and holds nothing of the request."""
    fingerprinter = Fingerprinter(FingerprintSpec(), KEY)
    digests = fingerprinter.digests(HEAD, BODY)
    kept = {
        made.with_parts(made.alternatives(digests)[0], digests, operation_id).parts
        for made in (fingerprinter, Fingerprinter(FingerprintSpec()))
        for operation_id in (OPERATION, uuid4())
    }
    pieces = [parts[start : start + 4] for parts in kept for start in range(0, len(parts), 4)]
    # It has neither a content coding nor a condition.
    assert pieces.count(bytes(4)) == 2 * len(kept)
    assert len(set(pieces)) == len(pieces) - 2 * len(kept) + 1
    assert {len(parts) for parts in kept} == {32}
