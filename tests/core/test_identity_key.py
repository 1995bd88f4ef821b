"""Keys: where they are found, which are refused and how, and when two spellings are one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.identity.body import parse_pointer
from gateway.core.identity.key import BodyPart, ComposedKey, HeaderKey, HeaderPart, Key, KeyFault, KeyFormat
from gateway.core.message import IndexedHeaders
from tests.core.rows import rows

visible = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255)
CLOUD_EVENT = ComposedKey((HeaderPart(b"ce-source"), HeaderPart(b"ce-id")))
BUSINESS = ComposedKey((BodyPart(parse_pointer("/account_id")), BodyPart(parse_pointer("/merchant_reference"))))
business_keys = st.tuples(*[st.text(min_size=1, max_size=20)] * 2)


def quoted(text: str) -> bytes:
    return b'"' + text.replace("\\", "\\\\").replace('"', '\\"').encode() + b'"'


def parsed(value: bytes, key_format: KeyFormat = KeyFormat.ANY) -> Key | KeyFault:
    return HeaderKey(format=key_format).find_key({b"idempotency-key": [value]})


def key(value: bytes) -> Key:
    found = parsed(value)
    assert isinstance(found, Key)
    return found


@given(text=visible | st.sampled_from(["k" * 255, '"' * 255]))
def test_quoted_is_bare(text: str) -> None:
    """A quoted key and a bare one of the same characters are the same key, and its field value reads as it again."""
    from_quoted = key(quoted(text))
    assert from_quoted.text == text
    assert key(from_quoted.header_value) == from_quoted
    if not text.startswith('"') and "," not in text:
        assert key(text.encode()) == from_quoted


@given(one=visible, other=visible)
def test_keys_are_opaque(one: str, other: str) -> None:
    """Keys of different characters, also in case alone, are different keys; none is in its representation."""
    assert (key(quoted(one)).digest == key(quoted(other)).digest) == (one == other)
    assert key(b"ab").digest != key(b"AB").digest
    assert "s3cret" not in repr(key(b"s3cret"))


@given(value=st.binary(max_size=300))
def test_total(value: bytes) -> None:
    """Whatever bytes a field holds, they are a key of the grammar or a fault."""
    found = parsed(value)
    if isinstance(found, Key):
        assert 1 <= len(found.text) <= 255
        assert all("\x21" <= character <= "\x7e" for character in found.text)
    else:
        assert found.detail.startswith("Idempotency-Key ")


@rows(
    "value, detail",
    tab=(b"abc\tdef", "Idempotency-Key contains a tab at position 4."),
    utf_8=(b"a\xc3\xbc", "Idempotency-Key contains a character outside of ASCII at position 2."),
    very_long=(b'"' + b"k" * 9999, "Idempotency-Key is longer than 255 characters."),
    unclosed=(b'"abc', "Idempotency-Key is not a well-formed quoted string at position 5."),
    parameters=(b'"abc";v=1', "Idempotency-Key has parameters, which mean nothing on a key."),
)
def test_fault(value: bytes, detail: str) -> None:
    """A fault says what is wrong with the key and where."""
    assert parsed(value) == KeyFault(detail)


def test_given_twice() -> None:
    """Two lines of the field are an error, also when they are equal."""
    found = HeaderKey().find_key({b"idempotency-key": [b"k", b"k"]})
    assert found == KeyFault("Idempotency-Key is given more than once.")


@rows(
    "key_format, value, is_key",
    structured_quoted=(KeyFormat.STRUCTURED, b'"abc"', True),
    structured_bare=(KeyFormat.STRUCTURED, b"abc", False),
    uuid_bare=(KeyFormat.UUID, b"8e03978e-40d5-43dd-bc93-6894a57f9324", True),
    uuid_quoted=(KeyFormat.UUID, b'"8E03978E-40D5-43DD-BC93-6894A57F9324"', True),
    uuid_without_hyphens=(KeyFormat.UUID, b"8e03978e40d543ddbc936894a57f9324", False),
)
def test_format(key_format: KeyFormat, value: bytes, is_key: bool) -> None:
    """A format refuses keys and changes none."""
    found = parsed(value, key_format)
    assert isinstance(found, Key) is is_key
    if is_key:
        assert found == key(value)


def test_first_alias_present() -> None:
    """The first of the names that is present gives the key, or the fault, whatever the order of the fields."""
    spec = HeaderKey((b"PayPal-Request-Id", b"Idempotency-Key"))
    for fields, found in (
        (((b"idempotency-key", b"b"), (b"PAYPAL-REQUEST-ID", b"a")), key(b"a")),
        (((b"idempotency-key", b"b"),), key(b"b")),
        (((b"PayPal-Request-Id", b""), (b"Idempotency-Key", b"b")), KeyFault("PayPal-Request-Id is empty.")),
        (((b"X-Other", b"b"),), None),
    ):
        assert spec.find_key(IndexedHeaders(fields).by_name, None) == found


def composed(spec: ComposedKey, body: bytes, *headers: tuple[bytes, bytes]) -> Key | KeyFault | None:
    return spec.find_key(IndexedHeaders(headers).by_name, body)


def test_composed_of_headers() -> None:
    """A key composed of fields needs all of them, and no character moves from one part to the next."""
    one = composed(CLOUD_EVENT, b"", (b"ce-source", b"/a/b"), (b"ce-id", b"c"))
    other = composed(CLOUD_EVENT, b"", (b"ce-source", b"/a"), (b"ce-id", b"/bc"))
    assert (one.text, other.text) == ('["/a/b","c"]', '["/a","/bc"]')
    assert one.digest != other.digest
    assert composed(CLOUD_EVENT, b"", (b"ce-source", b"/a/b")) is None
    twice = composed(CLOUD_EVENT, b"", (b"ce-source", b"/a"), (b"ce-id", b"1"), (b"ce-id", b"1"))
    assert twice == KeyFault("ce-id is given more than once.")


@given(one=business_keys, other=business_keys)
def test_composed_of_body(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Business keys may hold any characters, and are equal when all their parts are."""

    def digest(parts: tuple[str, str]) -> bytes:
        body = json.dumps({"account_id": parts[0], "merchant_reference": parts[1]}, ensure_ascii=len(parts[0]) % 2 == 0)
        return composed(BUSINESS, body.encode()).digest

    assert (digest(one) == digest(other)) == (one == other)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        pytest.param(b'{"id": 1%b}' % (b"0" * 255), "is longer than 255 characters", id="long-number"),
        pytest.param(b'{"id": "%b"}' % (b"x" * 256), "is longer than 255 characters", id="long"),
        pytest.param(b'{"id": "a", "id": "b"}', "not a JSON document", id="duplicate-member"),
        pytest.param(b"id=a", "not a JSON document", id="form"),
        pytest.param(b'{"id": "\xff"}', "not a JSON document", id="not-utf-8"),
        *[pytest.param(body, None, id=f"missing-{body!r}") for body in (b"", b"[]")],
    ],
)
def test_body_part_fault(body: bytes, fault: str | None) -> None:
    """A part that is there and cannot be read with certainty is a fault, also in a coded body, and no missing key."""
    spec = ComposedKey((BodyPart(("id",)),))
    found = composed(spec, body)
    assert found is None if fault is None else isinstance(found, KeyFault) and fault in found.detail
    assert isinstance(composed(spec, b'{"id": "a"}', (b"Content-Encoding", b"gzip")), KeyFault)
    assert [each.needs_body for each in (spec, CLOUD_EVENT, HeaderKey())] == [True, False, False]


DIRECTORY = Path(__file__).parent.parent / "vectors" / "structured-fields"


def vectors() -> list[Any]:
    return [
        pytest.param(vector, id=f"{path.stem}-{vector['name'].replace(' ', '-')}")
        for path in sorted(DIRECTORY.glob("*.json"))
        for vector in json.loads(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("vector", vectors())
def test_structured_key(vector: dict[str, Any]) -> None:
    """What must fail is refused, and of the rest those strings are keys that obey the grammar of keys."""
    lines = [line.encode("utf-8") for line in vector["raw"]]
    found = HeaderKey(format=KeyFormat.STRUCTURED).find_key({b"idempotency-key": lines})
    if vector.get("must_fail", False) or len(lines) > 1:
        assert isinstance(found, KeyFault)
        return
    text, parameters = vector["expected"]
    is_visible = isinstance(text, str) and all("!" <= one <= "~" for one in text)
    if is_visible and not parameters and 0 < len(text) <= 255:
        assert found.text == text
    else:
        assert isinstance(found, KeyFault)
