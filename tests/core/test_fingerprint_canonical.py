"""Canonical forms: spellings that mean the same are equal, and nothing else is."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.identity.body import (
    CANONICAL_BYTES_MAX,
    DEPTH_MAX,
    MISSING,
    PAIRS_MAX,
    PART_HEADERS_MAX,
    PARTS_MAX,
    QUOTES_MAX,
    VALUES_MAX,
    MediaType,
    canonical_document,
    canonical_form,
    canonical_multipart,
    format_pointer,
    parse_json,
    parse_media_type,
    parse_pointer,
)

# Numbers stand as integers, so that Python's own equality (but for True == 1) is that of the documents.
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def canonical_json(body: bytes) -> bytes | None:
    document = parse_json(body)
    return None if document is MISSING else canonical_document(document)


def spell(document: Any, seed: int) -> bytes:
    """The document in one of its many spellings."""
    random_ = random.Random(seed)

    def space() -> str:
        return random_.choice(["", " ", "\n", "\t", "\r\n"])

    def string(value: str) -> str:
        plain = json.dumps(value, ensure_ascii=random_.random() < 0.5)
        if value.isascii() and value.isalnum() and random_.random() < 0.5:
            return '"' + "".join(f"\\u{ord(character):04{random_.choice('xX')}}" for character in value) + '"'
        return plain

    def write(value: Any) -> str:
        if isinstance(value, dict):
            members = list(value.items())
            random_.shuffle(members)
            return "{" + ",".join(f"{space()}{string(k)}{space()}:{write(v)}" for k, v in members) + space() + "}"
        if isinstance(value, list):
            return "[" + ",".join(write(element) for element in value) + space() + "]"
        return space() + (string(value) if isinstance(value, str) else json.dumps(value)) + space()

    return write(document).encode()


def strict(document: Any) -> str:
    """The document as text in which True and 1 differ."""
    return json.dumps(document, sort_keys=True)


@given(document=documents, seed=st.integers(0, 2**32))
def test_json_spellings_are_equal(document: Any, seed: int) -> None:
    """Order of members, white space and escapes change nothing."""
    assert canonical_json(spell(document, seed)) == canonical_json(spell(document, seed + 1)) is not None


@given(one=documents, other=documents)
def test_json_documents_differ(one: Any, other: Any) -> None:
    """Two documents have the same form only when they are the same document."""
    assert (canonical_json(spell(one, 1)) == canonical_json(spell(other, 2))) == (strict(one) == strict(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(b"10.0", b"10.00", id="trailing-zero"),
        pytest.param(b"1", b"1.0", id="integer"),
        pytest.param(b"1e2", b"100", id="exponent"),
        pytest.param(b"-0", b"0", id="negative-zero"),
        pytest.param(b"0.1", b"0.1000000000000000055511151231257827", id="float-equal"),
        pytest.param(b"9007199254740993", b"9007199254740992", id="double-equal"),
        pytest.param(b"1", b'"1"', id="string"),
        pytest.param(b"true", b'"true"', id="boolean-string"),
        pytest.param(b"null", b'"null"', id="null-string"),
        pytest.param(b"null", b"[]", id="null-array"),
        pytest.param(b'"\\ud800"', b'"\\ud801"', id="lone-surrogates"),
        pytest.param(b'"\\ud800"', b'"?"', id="lone-surrogate-replaced"),
        pytest.param(b'"x\\udfff1"', b'"x1"', id="number-mark-inside"),
        pytest.param(b'"\\udbff\\udfff1"', b"1", id="number-mark-in-pair"),
        pytest.param('"é"'.encode(), '"e\u0301"'.encode(), id="normalisation-forms"),
        pytest.param(b'{"a":{"b":1}}', b'{"a.b":1}', id="nesting"),
        pytest.param(b"[1,2]", b"[2,1]", id="array-order"),
        pytest.param(b"[1,2]", b"[12]", id="array-boundaries"),
        pytest.param(b"[[],1]", b"[[1]]", id="array-nesting"),
    ],
)
def test_json_values_that_differ(one: bytes, other: bytes) -> None:
    """A number is what was written, a string is never something else, and characters are not folded."""
    assert canonical_json(one) is not None
    assert canonical_json(other) is not None
    assert canonical_json(one) != canonical_json(other)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="open"),
        pytest.param(b"{} {}", id="two-documents"),
        pytest.param(b'{"a":1,"a":1}', id="duplicate-member"),
        pytest.param(b'[{"a":{"b":1,"\\u0062":2}}]', id="duplicate-member-escaped"),
        pytest.param(b"NaN", id="nan"),
        pytest.param(b"[-Infinity]", id="infinity"),
        pytest.param(b"01", id="leading-zero"),
        pytest.param(b"{'a':1}", id="single-quotes"),
        pytest.param(b"[1,]", id="trailing-comma"),
        pytest.param(b'"\n"', id="control-character"),
        pytest.param(b'"\xff"', id="not-utf-8"),
        pytest.param(b'"\xed\xa0\x80"', id="encoded-surrogate"),
        pytest.param(b"\xef\xbb\xbf{}", id="byte-order-mark"),
        pytest.param("{}".encode("utf-16"), id="utf-16"),
        pytest.param(b'"\\udfff1"', id="looks-like-a-number"),
        pytest.param(b'{"\\uDFff":1}', id="looks-like-a-number-upper"),
        pytest.param(b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1), id="deep"),
        pytest.param(b'{"a":' * (DEPTH_MAX + 1) + b"1" + b"}" * (DEPTH_MAX + 1), id="deep-objects"),
        pytest.param(b"[" * 30_000, id="depth-bomb"),
        pytest.param(b"]" * 200 + b"[" * 200, id="brackets-crossed"),
        pytest.param(b'["' + b"\\" * 300 + b'"' + b"[" * 300, id="brackets-in-open-string"),
        pytest.param(b"[" + b"1," * VALUES_MAX + b"1]", id="many-values"),
        pytest.param(b'["' + b'\\"' * (QUOTES_MAX - 1) + b'"]', id="many-quotes"),
        pytest.param(b"[" * (DEPTH_MAX + 1) + b"]" * 1_000_000, id="closing-brackets"),
        pytest.param(b'"' + b"x" * CANONICAL_BYTES_MAX + b'"', id="long"),
    ],
)
def test_json_refused(body: bytes) -> None:
    """What is not one document to everybody, or is out of bounds, has no canonical form."""
    assert canonical_json(body) is None


@given(body=st.binary(max_size=60) | st.text(alphabet='[]{}":,\\u1dfe0.-n ', max_size=60).map(str.encode))
def test_json_total(body: bytes) -> None:
    """Whatever the bytes are, they have a form of ASCII bytes or none, and no exception."""
    form = canonical_json(body)
    assert form is None or form.isascii()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX, id="arrays"),
        pytest.param(b'{"a":' * DEPTH_MAX + b"1" + b"}" * DEPTH_MAX, id="objects"),
        pytest.param(b"[" + b"[[]]," * 1000 + b"1]", id="siblings"),
        pytest.param(b'["' + b"[{" * 1000 + b'\\"' + b"[" * 500 + b'"]', id="brackets-in-strings"),
        pytest.param(b'["' + b"]" * 10_000 + b'",' + b"[]," * 200 + b"1]", id="closing-brackets-in-strings"),
        pytest.param(b'["' + b'\\"' * (QUOTES_MAX - 2) + b'"]', id="quotes-in-strings"),
        pytest.param(
            b"{" + b",".join(b'"%d":""' % number for number in range(VALUES_MAX)) + b"}", id="members-of-strings"
        ),
    ],
)
def test_json_within_bounds(body: bytes) -> None:
    """Depth counts levels, not brackets, and not those in strings."""
    assert canonical_json(body) is not None


@pytest.mark.parametrize(
    ("one", "other", "ignore", "is_equal"),
    [
        pytest.param(b'{"a":1,"t":1}', b'{"a":1,"t":2}', ["/t"], True, id="member"),
        pytest.param(b'{"a":1,"t":1}', b'{"a":1}', ["/t"], True, id="absent"),
        pytest.param(b'{"a":1,"t":1}', b'{"a":2,"t":1}', ["/t"], False, id="other-member"),
        pytest.param(b'{"m":{"t":1,"x":1}}', b'{"m":{"t":2,"x":1}}', ["/m/t"], True, id="nested"),
        pytest.param(b'{"a/b":1,"m~n":1}', b"{}", ["/a~1b", "/m~0n"], True, id="escaped"),
        pytest.param(b"[1,2,3]", b"[9,2,8]", ["/0", "/2"], True, id="elements"),
        pytest.param(b"[1,2,3]", b"[1,9,3]", ["/0", "/2"], False, id="other-element"),
        pytest.param(b"[1,2]", b"[1]", ["/1"], True, id="last-element"),
        pytest.param(b"[[1,2],3]", b"[9,3]", ["/0/1", "/0"], True, id="element-and-within"),
        pytest.param(b"[1]", b"[2]", ["/-", "/00", "/a"], False, id="no-index"),
        pytest.param(b'{"a":1}', b'{"a":1}', ["/a/b/c", "/x/0"], True, id="nowhere"),
        pytest.param(b'[{"b":null},2,3]', b"[3]", ["/0", "/1"], False, id="indices-of-what-was-there"),
        pytest.param(b'{"0":1}', b'{"0":2}', ["/0"], True, id="member-that-looks-like-an-index"),
    ],
)
def test_ignore(one: bytes, other: bytes, ignore: list[str], is_equal: bool) -> None:
    """What is ignored may be there, differ or be absent, and nothing else may."""
    pointers = [parse_pointer(pointer) for pointer in ignore]
    forms = [canonical_document(parse_json(body), ignore=pointers) for body in (one, other)]
    assert (forms[0] == forms[1]) is is_equal


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        pytest.param(b'{"amount":1,"currency":"eur","x":1}', b'{"currency":"eur","amount":1}', True, id="others"),
        pytest.param(b'{"amount":1,"currency":"eur"}', b'{"amount":1.0,"currency":"eur"}', False, id="lexeme"),
        pytest.param(b'{"amount":1}', b'{"amount":1,"currency":null}', False, id="absent-is-not-null"),
        pytest.param(b'{"amount":1}', b'{"currency":1}', False, id="which-one"),
        pytest.param(b'{"amount":[]}', b"{}", False, id="absent-is-not-empty"),
    ],
)
def test_only(one: bytes, other: bytes, is_equal: bool) -> None:
    """Only the values that are named count, and whether they are there."""
    pointers = [("amount",), ("currency",)]
    forms = [canonical_document(parse_json(body), only=pointers) for body in (one, other)]
    assert (forms[0] == forms[1]) is is_equal


@pytest.mark.parametrize("text", ["", "a", "/a~", "/a~2b"], ids=["empty", "relative", "tilde", "escape"])
def test_bad_pointer(text: str) -> None:
    """A pointer that RFC 6901 does not allow, or that names the whole document, is refused."""
    with pytest.raises(ValueError, match="JSON pointer"):
        parse_pointer(text)


@given(tokens=st.lists(st.text(alphabet="ab/~01", max_size=4), min_size=1, max_size=4).map(tuple))
def test_pointer_round_trip(tokens: tuple[str, ...]) -> None:
    """A pointer reads as the tokens that it was written from."""
    assert parse_pointer(format_pointer(tokens)) == tokens


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        pytest.param(b"a=1&b=2", b"b=2&a=1", True, id="order-of-distinct-names"),
        pytest.param(b"a=%31+x&b=2", b"a=1%20x&b=2", True, id="percent-encoding"),
        pytest.param(b"a=%c3%bc", b"a=%C3%BC", True, id="case-of-escapes"),
        pytest.param(b"a=1&a=2", b"a=2&a=1", False, id="order-of-one-name"),
        pytest.param(b"a=1&a=2&b=3", b"b=3&a=1&a=2", True, id="order-beside-a-name-that-repeats"),
        pytest.param(b"a[]=1&b[]=2", b"b[]=2&a[]=1", True, id="order-of-two-lists"),
        pytest.param(b"a[]=1&a[5]=2", b"a[5]=2&a[]=1", False, id="index-beside-a-list"),
        pytest.param(b"a[b][]=1&a[b][c]=2", b"a[b][c]=2&a[b][]=1", False, id="within-a-list-below"),
        pytest.param(b"a[b][]=1&a[c]=2", b"a[c]=2&a[b][]=1", True, id="beside-a-list-below"),
        pytest.param(b"a=1&a[b]=2", b"a[b]=2&a=1", False, id="within-another"),
        pytest.param(b"a[b]=1&a[b][c]=2", b"a[b][c]=2&a[b]=1", False, id="within-another-below"),
        pytest.param(b"a=1&ab=2", b"ab=2&a=1", True, id="begins-with-another"),
        pytest.param(b"a=1&A=2", b"A=2&a=1", False, id="case"),
        pytest.param(b"a.b=1&a_b=2", b"a_b=2&a.b=1", False, id="underscore-of-php"),
        pytest.param(b"[]=1&[x]=2", b"[x]=2&[]=1", False, id="no-base"),
        pytest.param(
            b"a" + b"[x]" * 90 + b"[]=1&a" + b"[x]" * 90 + b"[k]=2",
            b"a" + b"[x]" * 90 + b"[k]=2&a" + b"[x]" * 90 + b"[]=1",
            False,
            id="deep",
        ),
        pytest.param(b"i[][s]=A&i[][q]=1&i[][s]=B", b"i[][s]=A&i[][s]=B&i[][q]=1", False, id="order-of-objects"),
        pytest.param(b"i%5B%5D=1&i%5B%5D=2", b"i[]=1&i[]=2", True, id="escaped-brackets"),
        pytest.param(b"a=1%262", b"a=1&2", False, id="escaped-ampersand"),
        pytest.param(b"a%3Db=c", b"a=b%3Dc", False, id="escaped-equals"),
        pytest.param(b"a=b=c", b"a=b%3Dc", True, id="second-equals"),
        pytest.param(b"a", b"a=", False, id="no-equals"),
        pytest.param(b"a=1", b"a=1&", False, id="empty-pair"),
        pytest.param(b"a=10.0", b"a=10.00", False, id="digits"),
        pytest.param(b"", b"&", False, id="empty"),
    ],
)
def test_form(one: bytes, other: bytes, is_equal: bool) -> None:
    """Pairs count by value; their order does not only where no server could see it."""
    assert canonical_form(one) is not None
    assert (canonical_form(one) == canonical_form(other)) is is_equal


@pytest.mark.parametrize(
    "body",
    [b"a=%zz", b"a=%2", b"a=1;b=2", b"a=" + b"x" * CANONICAL_BYTES_MAX, b"&" * PAIRS_MAX],
    ids=["bad-escape", "short-escape", "semicolon", "long", "many-pairs"],
)
def test_form_refused(body: bytes) -> None:
    """A form that servers read differently, or that is out of bounds, has no canonical form."""
    assert canonical_form(body) is None


pairs = st.lists(st.tuples(st.binary(max_size=6), st.binary(max_size=6)), min_size=1, max_size=5)


@given(one=pairs, other=pairs)
def test_form_is_injective(one: list[tuple[bytes, bytes]], other: list[tuple[bytes, bytes]]) -> None:
    """Forms of different pairs differ, whatever bytes names and values hold."""

    def spell_form(values: list[tuple[bytes, bytes]]) -> bytes:
        return b"&".join(
            b"=".join("".join(f"%{byte:02X}" for byte in part).encode() for part in pair) for pair in values
        )

    assert (canonical_form(spell_form(one)) == canonical_form(spell_form(other))) <= (sorted(one) == sorted(other))


def multipart(boundary: bytes, *parts: tuple[bytes, bytes]) -> bytes:
    return b"".join(b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, *part) for part in parts) + b"--%b--\r\n" % boundary


NAME = b'Content-Disposition: form-data; name="a"'
FILE = b'Content-Disposition: form-data; name="f"; filename="x.txt"\r\nContent-Type: text/plain'


def _named(name: bytes) -> bytes:
    return b'Content-Disposition: form-data; name="%b"' % name


def test_multipart_boundary_does_not_count() -> None:
    """The same parts between other boundaries are the same, with and without a last line end."""
    one = canonical_multipart(multipart(b"X", (NAME, b"1"), (FILE, b"\r\n--Y")), b"X")
    assert one is not None
    assert one == canonical_multipart(multipart(b"LONGER", (NAME, b"1"), (FILE, b"\r\n--Y")), b"LONGER")
    assert one == canonical_multipart(multipart(b"X", (NAME, b"1"), (FILE, b"\r\n--Y"))[:-2], b"X")
    spelled = (b"CONTENT-TYPE:text/plain\r\ncontent-disposition:   " + FILE.split(b"\r\n")[0][21:], b"\r\n--Y")
    assert one == canonical_multipart(multipart(b"X", (NAME, b"1"), spelled), b"X")


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([(NAME, b"2"), (FILE, b"x")], id="content"),
        pytest.param([(NAME, b"1"), (NAME, b"0"), (FILE, b"x")], id="more"),
        pytest.param([(NAME, b"1")], id="fewer"),
        pytest.param([(NAME, b"1"), (FILE.replace(b"x.txt", b"y.txt"), b"x")], id="filename"),
        pytest.param([(NAME, b"1"), (FILE.replace(b"text", b"font"), b"x")], id="content-type"),
        pytest.param([(NAME, b"1"), (FILE.replace(b'name="f"', b'name="g"'), b"x")], id="name"),
        pytest.param([(NAME, b"1"), (FILE, b"x\r\n")], id="line-end"),
        pytest.param([(NAME, b"1"), (FILE, b"")], id="empty"),
        pytest.param([], id="none"),
    ],
)
def test_multipart_differs(parts: list[tuple[bytes, bytes]]) -> None:
    """Content, number and every field of the parts count."""
    base = canonical_multipart(multipart(b"X", (NAME, b"1"), (FILE, b"x")), b"X")
    other = canonical_multipart(multipart(b"X", *parts), b"X")
    assert other is not None
    assert base != other


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        pytest.param((NAME, b"1"), (FILE, b"x"), True, id="distinct-names"),
        pytest.param((NAME, b"1"), (NAME, b"2"), False, id="one-name"),
        pytest.param((_named(b"m[a]"), b"1"), (_named(b"m[b]"), b"2"), True, id="members"),
        pytest.param((_named(b"i[][a]"), b"1"), (_named(b"i[][b]"), b"2"), False, id="lists"),
        pytest.param((b"Content-Disposition: form-data; name=a", b"1"), (FILE, b"x"), True, id="without-quotes"),
        pytest.param((NAME, b"1"), (b"Content-Type: text/plain", b"2"), False, id="no-name"),
        pytest.param((NAME, b"1"), (FILE + b"\r\n" + NAME, b"2"), False, id="two-names"),
        pytest.param((NAME, b"1"), (_named(b'b"; name="a'), b"2"), False, id="a-name-given-twice"),
        pytest.param((NAME, b"1"), (_named(b'b\\"; c="'), b"2"), False, id="escapes"),
    ],
)
def test_multipart_order(one: tuple[bytes, bytes], other: tuple[bytes, bytes], is_equal: bool) -> None:
    """Order counts as in a form, and wherever the name of a part is not certain."""
    forms = [canonical_multipart(multipart(b"X", *parts), b"X") for parts in ((one, other), (other, one))]
    assert None not in forms
    assert (forms[0] == forms[1]) is is_equal


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"preamble\r\n" + multipart(b"X", (NAME, b"1")), id="preamble"),
        pytest.param(multipart(b"X", (NAME, b"1")) + b"epilogue", id="epilogue"),
        pytest.param(multipart(b"X", (NAME, b"1"))[:-4], id="not-closed"),
        pytest.param(multipart(b"X", (NAME, b"1\r\n--XY")), id="longer-boundary-inside"),
        pytest.param(multipart(b"X", (NAME, b"1\n--X\n" + NAME + b"\n\n2")), id="boundary-after-a-line-feed"),
        pytest.param(multipart(b"X", (NAME, b"1 --X 2"), (FILE, b"x")), id="boundary-within-a-line"),
        pytest.param(multipart(b"X", (NAME, b"--X")), id="boundary-as-content"),
        pytest.param(multipart(b"X", (NAME, b"\n--X")), id="boundary-after-a-line-feed-first"),
        pytest.param(multipart(b"X", (NAME + b"; x=--X", b"1")), id="boundary-within-a-field"),
        pytest.param(multipart(b"X", (NAME, b"1")).replace(b"--X\r\n", b"--X \r\n"), id="padding"),
        pytest.param(multipart(b"X", (NAME, b"1")).replace(b"\r\n", b"\n"), id="bare-line-feeds"),
        pytest.param(multipart(b"X", (NAME + b"\r\n folded", b"1")), id="folded-field"),
        pytest.param(multipart(b"X", (b"no colon", b"1")), id="no-field"),
        pytest.param(multipart(b"X", (b"--X: 1", b"1")), id="boundary-as-field"),
        pytest.param(
            b"--X\r\n" + NAME + b"\r\n\r\n--X\r\n" + NAME + b"\r\n\r\n1\r\n--X--\r\n", id="boundary-behind-head"
        ),
        pytest.param(multipart(b"X", (b"A: " + b"x" * 20_000, b"1")), id="long-head"),
        pytest.param(multipart(b"X", (b"A:\r\n" * PART_HEADERS_MAX + NAME, b"1")), id="many-fields"),
        pytest.param(multipart(b"X", *[(NAME, b"1")] * (PARTS_MAX + 1)), id="many-parts"),
    ],
)
def test_multipart_refused(body: bytes) -> None:
    """What two parsers could read differently has no canonical form."""
    assert canonical_multipart(body, b"X") is None


def test_multipart_across_windows() -> None:
    """A boundary is found wherever it falls in a body that is read in windows."""
    window = 256 << 10
    for offset in range(-12, 3):
        body = multipart(b"X", (NAME, b"c" * (window + offset)), (NAME, b"d"))
        other = multipart(b"Y", (NAME, b"c" * (window + offset)), (NAME, b"d"))
        assert canonical_multipart(body, b"X") == canonical_multipart(other, b"Y") is not None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(b"Application/JSON", MediaType(b"application/json"), id="case"),
        pytest.param(
            b'text/plain ; B=Two;a="o\\ne"', MediaType(b"text/plain", ((b"a", b"one"), (b"b", b"Two"))), id="parameters"
        ),
        pytest.param(b"a/b; charset=UTF-8", MediaType(b"a/b", ((b"charset", b"utf-8"),)), id="charset"),
        pytest.param(b"a/b;; ;", MediaType(b"a/b"), id="empty-parameters"),
        pytest.param(b"a/b; x=", None, id="no-value"),
        pytest.param(b"a/b; x=1; X=2", None, id="twice"),
        pytest.param(b"a", None, id="no-subtype"),
        pytest.param(b"a/b c", None, id="trailing"),
        pytest.param(b'a/b; x="1', None, id="unclosed"),
        pytest.param(b"", None, id="empty"),
    ],
)
def test_media_type(value: bytes, expected: MediaType | None) -> None:
    """Spelling, quoting and order of parameters mean nothing; their values do."""
    assert parse_media_type(value) == expected


@pytest.mark.parametrize(
    ("value", "boundary"),
    [
        (b"; boundary=Abc", b"Abc"),
        (b'; boundary="a b"', b"a b"),
        (b'; boundary="a "', None),
        (b"", None),
        (b"; boundary=" + b"x" * 71, None),
    ],
    ids=["token", "quoted", "trailing-space", "none", "long"],
)
def test_boundary(value: bytes, boundary: bytes | None) -> None:
    """The boundary is one that RFC 2046 allows, or there is none."""
    media = parse_media_type(b"multipart/form-data" + value)
    assert media is not None
    assert media.boundary == boundary
