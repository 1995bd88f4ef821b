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
from tests.core.rows import rows

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
        if value.isascii() and value.isalnum() and random_.random() < 0.5:
            return '"' + "".join(f"\\u{ord(character):04{random_.choice('xX')}}" for character in value) + '"'
        return json.dumps(value, ensure_ascii=random_.random() < 0.5)

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


@rows(
    "one, other",
    trailing_zero=(b"10.0", b"10.00"),
    exponent=(b"1e2", b"100"),
    negative_zero=(b"-0", b"0"),
    float_equal=(b"0.1", b"0.1000000000000000055511151231257827"),
    string=(b"1", b'"1"'),
    null_array=(b"null", b"[]"),
    lone_surrogates=(b'"\\ud800"', b'"\\ud801"'),
    number_mark_inside=(b'"x\\udfff1"', b'"x1"'),
    number_mark_in_pair=(b'"\\udbff\\udfff1"', b"1"),
    normalisation_forms=('"é"'.encode(), '"e\u0301"'.encode()),
    nesting=(b'{"a":{"b":1}}', b'{"a.b":1}'),
    array_order=(b"[1,2]", b"[2,1]"),
    array_boundaries=(b"[1,2]", b"[12]"),
)
def test_json_values_that_differ(one: bytes, other: bytes) -> None:
    """A number is what was written, a string is never something else, and characters are not folded."""
    assert len({canonical_json(one), canonical_json(other), None}) == 3


@rows(
    "body",
    empty=b"",
    two_documents=b"{} {}",
    duplicate_member=b'{"a":1,"a":1}',
    duplicate_member_escaped=b'[{"a":{"b":1,"\\u0062":2}}]',
    nan=b"NaN",
    control_character=b'"\n"',
    not_utf_8=b'"\xff"',
    encoded_surrogate=b'"\xed\xa0\x80"',
    byte_order_mark=b"\xef\xbb\xbf{}",
    looks_like_a_number=b'"\\udfff1"',
    looks_like_a_number_upper=b'{"\\uDFff":1}',
    deep=b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1),
    depth_bomb=b"[" * 30_000,
    brackets_crossed=b"]" * 200 + b"[" * 200,
    brackets_in_open_string=b'["' + b"\\" * 300 + b'"' + b"[" * 300,
    many_values=b"[" + b"1," * VALUES_MAX + b"1]",
    many_quotes=b'["' + b'\\"' * (QUOTES_MAX - 1) + b'"]',
    closing_brackets=b"[" * (DEPTH_MAX + 1) + b"]" * 1_000_000,
    long=b'"' + b"x" * CANONICAL_BYTES_MAX + b'"',
)
def test_json_refused(body: bytes) -> None:
    """What is not one document to everybody, or is out of bounds, has no canonical form."""
    assert canonical_json(body) is None


@given(body=st.binary(max_size=60) | st.text(alphabet='[]{}":,\\u1dfe0.-n ', max_size=60).map(str.encode))
def test_json_total(body: bytes) -> None:
    """Whatever the bytes are, they have a form of ASCII bytes or none, and no exception."""
    form = canonical_json(body)
    assert form is None or form.isascii()


@rows(
    "body",
    arrays=b"[" * DEPTH_MAX + b"]" * DEPTH_MAX,
    siblings=b"[" + b"[[]]," * 1000 + b"1]",
    brackets_in_strings=b'["' + b"[{" * 1000 + b'\\"' + b"[" * 500 + b'"]',
    quotes_in_strings=b'["' + b'\\"' * (QUOTES_MAX - 2) + b'"]',
    members_of_strings=b"{" + b",".join(b'"%d":""' % number for number in range(VALUES_MAX)) + b"}",
)
def test_json_within_bounds(body: bytes) -> None:
    """Depth counts levels, not brackets, and not those in strings."""
    assert canonical_json(body) is not None


@rows(
    "one, other, ignore, is_equal",
    member=(b'{"a":1,"t":1}', b'{"a":1,"t":2}', ["/t"], True),
    absent=(b'{"a":1,"t":1}', b'{"a":1}', ["/t"], True),
    nested=(b'{"m":{"t":1,"x":1}}', b'{"m":{"t":2,"x":1}}', ["/m/t"], True),
    escaped=(b'{"a/b":1,"m~n":1}', b"{}", ["/a~1b", "/m~0n"], True),
    elements=(b"[1,2,3]", b"[9,2,8]", ["/0", "/2"], True),
    element_and_within=(b"[[1,2],3]", b"[9,3]", ["/0/1", "/0"], True),
    no_index=(b"[1]", b"[2]", ["/-", "/00", "/a"], False),
    indices_of_what_was_there=(b'[{"b":null},2,3]', b"[3]", ["/0", "/1"], False),
    member_that_looks_like_an_index=(b'{"0":1}', b'{"0":2}', ["/0"], True),
)
def test_ignore(one: bytes, other: bytes, ignore: list[str], is_equal: bool) -> None:
    """What is ignored may be there, differ or be absent, and nothing else may."""
    pointers = [parse_pointer(pointer) for pointer in ignore]
    forms = [canonical_document(parse_json(body), ignore=pointers) for body in (one, other)]
    assert (forms[0] == forms[1]) is is_equal


@rows(
    "one, other, is_equal",
    others=(b'{"amount":1,"currency":"eur","x":1}', b'{"currency":"eur","amount":1}', True),
    lexeme=(b'{"amount":1,"currency":"eur"}', b'{"amount":1.0,"currency":"eur"}', False),
    absent_is_not_null=(b'{"amount":1}', b'{"amount":1,"currency":null}', False),
    which_one=(b'{"amount":1}', b'{"currency":1}', False),
    absent_is_not_empty=(b'{"amount":[]}', b"{}", False),
)
def test_only(one: bytes, other: bytes, is_equal: bool) -> None:
    """Only the values that are named count, and whether they are there."""
    first, second = (canonical_document(parse_json(body), only=[("amount",), ("currency",)]) for body in (one, other))
    assert (first == second) is is_equal


@pytest.mark.parametrize("text", ["", "a", "/a~", "/a~2b"], ids=["empty", "relative", "tilde", "escape"])
def test_bad_pointer(text: str) -> None:
    """A pointer that RFC 6901 does not allow, or that names the whole document, is refused."""
    with pytest.raises(ValueError, match="JSON pointer"):
        parse_pointer(text)


@given(tokens=st.lists(st.text(alphabet="ab/~01", max_size=4), min_size=1, max_size=4).map(tuple))
def test_pointer_round_trip(tokens: tuple[str, ...]) -> None:
    """A pointer reads as the tokens that it was written from."""
    assert parse_pointer(format_pointer(tokens)) == tokens


DEEP = b"a" + b"[x]" * 90


@rows(
    "one, other, is_equal",
    order_of_distinct_names=(b"a=1&b=2", b"b=2&a=1", True),
    percent_encoding=(b"a=%31+x&b=2", b"a=1%20x&b=2", True),
    order_of_one_name=(b"a=1&a=2", b"a=2&a=1", False),
    order_of_two_lists=(b"a[]=1&b[]=2", b"b[]=2&a[]=1", True),
    index_beside_a_list=(b"a[]=1&a[5]=2", b"a[5]=2&a[]=1", False),
    within_a_list_below=(b"a[b][]=1&a[b][c]=2", b"a[b][c]=2&a[b][]=1", False),
    beside_a_list_below=(b"a[b][]=1&a[c]=2", b"a[c]=2&a[b][]=1", True),
    within_another=(b"a=1&a[b]=2", b"a[b]=2&a=1", False),
    within_another_below=(b"a[b]=1&a[b][c]=2", b"a[b][c]=2&a[b]=1", False),
    underscore_of_php=(b"a.b=1&a_b=2", b"a_b=2&a.b=1", False),
    no_base=(b"[]=1&[x]=2", b"[x]=2&[]=1", False),
    deep=(DEEP + b"[]=1&" + DEEP + b"[k]=2", DEEP + b"[k]=2&" + DEEP + b"[]=1", False),
    order_of_objects=(b"i[][s]=A&i[][q]=1&i[][s]=B", b"i[][s]=A&i[][s]=B&i[][q]=1", False),
    escaped_brackets=(b"i%5B%5D=1&i%5B%5D=2", b"i[]=1&i[]=2", True),
    escaped_ampersand=(b"a=1%262", b"a=1&2", False),
    second_equals=(b"a=b=c", b"a=b%3Dc", True),
    no_equals=(b"a", b"a=", False),
    empty_pair=(b"a=1", b"a=1&", False),
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

    def form(values: list[tuple[bytes, bytes]]) -> bytes | None:
        escaped = (["".join(f"%{byte:02X}" for byte in part).encode() for part in pair] for pair in values)
        return canonical_form(b"&".join(b"=".join(pair) for pair in escaped))

    assert (form(one) == form(other)) <= (sorted(one) == sorted(other))


def multipart(boundary: bytes, *parts: tuple[bytes, bytes]) -> bytes:
    return b"".join(b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, *part) for part in parts) + b"--%b--\r\n" % boundary


def _named(name: bytes) -> bytes:
    return b'Content-Disposition: form-data; name="%b"' % name


NAME = _named(b"a")
FILE = b'Content-Disposition: form-data; name="f"; filename="x.txt"\r\nContent-Type: text/plain'


def test_multipart_boundary_does_not_count() -> None:
    """The same parts between other boundaries are the same, with and without a last line end."""
    name, file = (NAME, b"1"), (FILE, b"\r\n--Y")
    one = canonical_multipart(multipart(b"X", name, file), b"X")
    assert one == canonical_multipart(multipart(b"LONGER", name, file), b"LONGER") is not None
    assert one == canonical_multipart(multipart(b"X", name, file)[:-2], b"X")
    spelled = (b"CONTENT-TYPE:text/plain\r\ncontent-disposition:   " + FILE.split(b"\r\n")[0][21:], b"\r\n--Y")
    assert one == canonical_multipart(multipart(b"X", name, spelled), b"X")


@rows(
    "parts",
    content=[(NAME, b"2"), (FILE, b"x")],
    more=[(NAME, b"1"), (NAME, b"0"), (FILE, b"x")],
    filename=[(NAME, b"1"), (FILE.replace(b"x.txt", b"y.txt"), b"x")],
    line_end=[(NAME, b"1"), (FILE, b"x\r\n")],
    empty=[(NAME, b"1"), (FILE, b"")],
)
def test_multipart_differs(parts: list[tuple[bytes, bytes]]) -> None:
    """Content, number and every field of the parts count."""
    base = canonical_multipart(multipart(b"X", (NAME, b"1"), (FILE, b"x")), b"X")
    other = canonical_multipart(multipart(b"X", *parts), b"X")
    assert len({base, other, None}) == 3


@rows(
    "one, other, is_equal",
    distinct_names=((NAME, b"1"), (FILE, b"x"), True),
    one_name=((NAME, b"1"), (NAME, b"2"), False),
    lists=((_named(b"i[][a]"), b"1"), (_named(b"i[][b]"), b"2"), False),
    two_names=((NAME, b"1"), (FILE + b"\r\n" + NAME, b"2"), False),
    a_name_given_twice=((NAME, b"1"), (_named(b'b"; name="a'), b"2"), False),
    escapes=((NAME, b"1"), (_named(b'b\\"; c="'), b"2"), False),
)
def test_multipart_order(one: tuple[bytes, bytes], other: tuple[bytes, bytes], is_equal: bool) -> None:
    """Order counts as in a form, and wherever the name of a part is not certain."""
    forms = [canonical_multipart(multipart(b"X", *parts), b"X") for parts in ((one, other), (other, one))]
    assert None not in forms
    assert (forms[0] == forms[1]) is is_equal


@rows(
    "body",
    empty=b"",
    preamble=b"preamble\r\n" + multipart(b"X", (NAME, b"1")),
    epilogue=multipart(b"X", (NAME, b"1")) + b"epilogue",
    not_closed=multipart(b"X", (NAME, b"1"))[:-4],
    longer_boundary_inside=multipart(b"X", (NAME, b"1\r\n--XY")),
    boundary_after_a_line_feed=multipart(b"X", (NAME, b"1\n--X\n" + NAME + b"\n\n2")),
    boundary_within_a_line=multipart(b"X", (NAME, b"1 --X 2"), (FILE, b"x")),
    boundary_within_a_field=multipart(b"X", (NAME + b"; x=--X", b"1")),
    padding=multipart(b"X", (NAME, b"1")).replace(b"--X\r\n", b"--X \r\n"),
    bare_line_feeds=multipart(b"X", (NAME, b"1")).replace(b"\r\n", b"\n"),
    folded_field=multipart(b"X", (NAME + b"\r\n folded", b"1")),
    no_field=multipart(b"X", (b"no colon", b"1")),
    boundary_behind_head=b"--X\r\n" + NAME + b"\r\n\r\n--X\r\n" + NAME + b"\r\n\r\n1\r\n--X--\r\n",
    long_head=multipart(b"X", (b"A: " + b"x" * 20_000, b"1")),
    many_fields=multipart(b"X", (b"A:\r\n" * PART_HEADERS_MAX + NAME, b"1")),
    many_parts=multipart(b"X", *[(NAME, b"1")] * (PARTS_MAX + 1)),
)
def test_multipart_refused(body: bytes) -> None:
    """What two parsers could read differently has no canonical form."""
    assert canonical_multipart(body, b"X") is None


def test_multipart_across_windows() -> None:
    """A boundary is found wherever it falls in a body that is read in windows."""
    window = 256 << 10
    for offset in range(-12, 3):
        parts = (NAME, b"c" * (window + offset)), (NAME, b"d")
        one, other = (canonical_multipart(multipart(name, *parts), name) for name in (b"X", b"Y"))
        assert one == other is not None


@rows(
    "value, expected",
    case=(b"Application/JSON", MediaType(b"application/json")),
    parameters=(b'text/plain ; B=Two;a="o\\ne"', MediaType(b"text/plain", ((b"a", b"one"), (b"b", b"Two")))),
    no_value=(b"a/b; x=", None),
    twice=(b"a/b; x=1; X=2", None),
    trailing=(b"a/b c", None),
    unclosed=(b'a/b; x="1', None),
)
def test_media_type(value: bytes, expected: MediaType | None) -> None:
    """Spelling, quoting and order of parameters mean nothing; their values do."""
    assert parse_media_type(value) == expected


@rows(
    "value, boundary",
    quoted=(b'; boundary="a b"', b"a b"),
    trailing_space=(b'; boundary="a "', None),
    long=(b"; boundary=" + b"x" * 71, None),
)
def test_boundary(value: bytes, boundary: bytes | None) -> None:
    """The boundary is one that RFC 2046 allows, or there is none."""
    assert parse_media_type(b"multipart/form-data" + value).boundary == boundary
