"""Fingerprints: the same request has the same one, another has another, under every recipe and key."""

from __future__ import annotations

import itertools
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.identity.fingerprint import (
    BodyForm,
    Digests,
    Fingerprinter,
    FingerprintKey,
    FingerprintSpec,
    sha256_of,
)
from gateway.core.message import Headers, IndexedHeaders, RequestHead
from gateway.core.verdict import Match, compare
from tests.core.rows import rows

JSON = b'{"amount":1000,"currency":"eur"}'
HEADERS: Headers = (
    (b"Host", b"api.example.com"), (b"Content-Type", b"application/json"), (b"X-Region", b"eu"),
    (b"Idempotency-Key", b"k"), (b"Authorization", b"Bearer sk"),
)  # fmt: skip
HEAD = RequestHead(b"POST", b"/v1/charges?expand=1", IndexedHeaders(HEADERS))
PLAIN = FingerprintSpec()
SECRET = b"0123456789abcdef"


def head(**fields: bytes) -> RequestHead:
    """The usual head with these fields exchanged (underscores for hyphens), left out where they are empty."""
    named = {name.replace("_", "-").encode(): value for name, value in fields.items()}
    kept = tuple((name, value) for name, value in HEADERS if name.lower() not in named)
    return replace(HEAD, headers=IndexedHeaders(kept + tuple((name, value) for name, value in named.items() if value)))


def digests(request: RequestHead = HEAD, body: bytes = JSON, spec: FingerprintSpec = PLAIN) -> Digests:
    return Fingerprinter(spec).digests(request, body)


def on_one_route(requests: list[RequestHead], spec: FingerprintSpec = PLAIN) -> list[Digests]:
    """Their digests, which are those of each by itself."""
    route = Fingerprinter(spec)
    made = [route.digests(request, JSON) for request in requests]
    assert made == [digests(request, spec=spec) for request in requests]
    return made


def flipped(value: bytes, position: int, bit: int) -> bytes:
    position %= len(value)
    return value[:position] + bytes((value[position] ^ 1 << bit,)) + value[position + 1 :]


@given(
    headers=st.permutations(HEADERS),
    spelling=st.sampled_from([bytes.lower, bytes.upper, bytes.title]),
    padding=st.sampled_from([b"", b" ", b"\t "]),
)
def test_header_order_and_case(headers: list[tuple[bytes, bytes]], spelling: object, padding: bytes) -> None:
    """Order and case of header fields, and white space around their values, change nothing."""
    assert callable(spelling)
    spelled = tuple((spelling(name), padding + value + padding) for name, value in headers)
    assert digests(replace(HEAD, headers=IndexedHeaders(spelled))) == digests()


@given(body=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200)))
def test_chunks(body: bytes, cuts: list[int]) -> None:
    """A body hashed in whatever chunks it came in has the fingerprint of the whole."""
    running = sha256()
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    for start, end in itertools.pairwise(edges):
        running.update(body[start:end])
    assert running.digest() == sha256_of(body)
    assert Fingerprinter(PLAIN).digests(HEAD, body, running.digest()) == digests(body=body)


@pytest.mark.parametrize("form", [BodyForm.RAW, BodyForm.AUTO], ids=["raw", "auto"])
@given(body=st.binary(min_size=1, max_size=64), position=st.integers(0, 63), bit=st.integers(0, 7))
def test_flipped_bit_of_body(form: BodyForm, body: bytes, position: int, bit: int) -> None:
    """One flipped bit of a body without a form of its own makes another request."""
    request, spec = head(content_type=b"application/octet-stream"), FingerprintSpec(body=form)
    one, other = (digests(request, each, spec) for each in (body, flipped(body, position, bit)))
    assert one.canonical != other.canonical
    assert one.raw != other.raw


@pytest.mark.parametrize("part", ["method", "target"])
@given(position=st.integers(0, 100), bit=st.integers(0, 7))
def test_flipped_bit_of_request_line(part: str, position: int, bit: int) -> None:
    """One flipped bit of method or target makes another request."""
    other = digests(replace(HEAD, **{part: flipped(getattr(HEAD, part), position, bit)}))
    assert other.canonical != digests().canonical
    assert other.raw != digests().raw


@given(position=st.integers(0, len(b"application/json") - 1), bit=st.integers(0, 7))
def test_flipped_bit_of_media_type(position: int, bit: int) -> None:
    """One flipped bit of the media type makes another request, unless it only changed the case of a letter."""
    other = flipped(b"application/json", position, bit)
    is_same = other.lower() == b"application/json"
    assert (digests(head(content_type=other)).canonical == digests().canonical) is is_same


@rows(
    "request_, is_equal",
    host_case=(head(host=b"API.example.COM"), True),
    host=(head(host=b"other.example.com"), False),
    media_type_case=(head(content_type=b"Application/JSON"), True),
    usual_charset=(head(content_type=b"application/json; charset=utf-8"), True),
    charset=(head(content_type=b"application/json; charset=latin1"), False),
    parameter=(head(content_type=b"application/json; version=2"), False),
    no_media_type=(head(content_type=b""), False),
    content_coding=(head(content_encoding=b"gzip"), False),
    authorization=(head(authorization=b"Bearer other"), True),
    key=(head(idempotency_key=b"other"), True),
    unlisted=(head(user_agent=b"x", date=b"now", traceparent=b"00"), True),
)
def test_fields(request_: RequestHead, is_equal: bool) -> None:
    """Host, media type and coding make the request; credentials, the key and unlisted fields do not."""
    assert (digests(request_).canonical == digests().canonical) is is_equal


def test_listed_headers() -> None:
    """A listed field counts with all its values, in order, and so does its absence, whatever came before."""
    spec = FingerprintSpec(headers=(b"X-Region",))
    twice = replace(HEAD, headers=IndexedHeaders((*HEADERS, (b"x-region", b"us"))))
    turned = replace(HEAD, headers=IndexedHeaders(((b"x-region", b"us"), *HEADERS)))
    requests = [HEAD, head(x_region=b"us"), head(x_region=b""), twice, turned, head(x_region=b"eu, us")]
    made = on_one_route(requests, spec)
    assert (len({one.canonical for one in made}), len({one.raw for one in made})) == (len(requests), 1)


FORM_DATA = b'--%b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--%b--\r\n'
FORM_MEDIA = b"application/x-www-form-urlencoded"
X, Y = (b"multipart/form-data; boundary=%b" % name for name in (b"X", b"Y"))
IN_X = FORM_DATA % (b"X", b"X")
J, T = b"application/json", b"text/plain"
# name: settings, the two media types and bodies, whether they are the same request
BODY_FORMS: dict[str, tuple[FingerprintSpec, tuple[bytes, bytes], tuple[bytes, bytes], bool]] = {
    "json": (PLAIN, (J, b'{"a":1,"b":2}'), (J, b'{ "b": 2, "a": 1 }'), True),
    "json-suffix": (PLAIN, (b"a/vnd.x+json", b'{"a":1,"b":2}'), (b"a/vnd.x+json", b'{"b":2,"a":1}'), True),
    "json-said": (FingerprintSpec(body=BodyForm.JSON), (T, b"[1]"), (T, b"[1 ]"), True),
    "none-said": (FingerprintSpec(body=BodyForm.NONE), (J, b"[1]"), (J, b"[2]"), True),
    "form": (PLAIN, (FORM_MEDIA, b"a=1&b=2"), (FORM_MEDIA, b"b=2&a=%31"), True),
    "multipart": (PLAIN, (X, IN_X), (b'multipart/form-data; boundary="Y Z"', FORM_DATA % (b"Y Z", b"Y Z")), True),
    "multipart-malformed": (PLAIN, (X, b"not multipart"), (Y, b"not multipart"), False),
    "multipart-other-boundary": (PLAIN, (X, IN_X), (Y, IN_X), False),
    "multipart-other-charset": (PLAIN, (X + b"; charset=utf-8", IN_X), (X + b"; charset=utf-7", IN_X), False),
    "fallback": (PLAIN, (J, b'{"a":1,"a":1}'), (J, b'{"a":1, "a":1}'), False),
    "only-no-json": (FingerprintSpec(), (T, b"[1]"), (T, b"[2]"), False),
}


@pytest.mark.parametrize(("spec", "one", "other", "is_equal"), BODY_FORMS.values(), ids=BODY_FORMS)
def test_body_form(spec: FingerprintSpec, one: tuple[bytes, bytes], other: tuple[bytes, bytes], is_equal: bool) -> None:
    """Bodies are compared in the form of their media type or in the one that the route says; coded ones never are."""
    first, second = (digests(head(content_type=media), body, spec) for media, body in (one, other))
    assert (first.canonical == second.canonical) is is_equal
    assert first.raw != second.raw
    if spec is PLAIN:
        first, second = (digests(head(content_type=media, content_encoding=b"x"), body) for media, body in (one, other))
        assert first.canonical != second.canonical


def test_raw_is_no_canonical_form() -> None:
    """A body that is, byte for byte, another's canonical form is not that one."""
    canonical = b'{"a":"\\udfff1"}'
    assert digests(body=canonical).canonical != digests(body=b'{"a":1}').canonical
    raw = FingerprintSpec(body=BodyForm.RAW)
    assert digests(body=b"[]", spec=raw).canonical != digests(body=b"[]").canonical
    assert digests(body=b"", spec=raw).canonical != digests(spec=FingerprintSpec(body=BodyForm.NONE)).canonical


OLD = FingerprintKey("k0", SECRET)
NEW = FingerprintKey("k1", SECRET[::-1])


@rows(
    "spec, before, now, same, other",
    same_key=(PLAIN, NEW, (NEW, [OLD]), Match.SAME, Match.DIFFERENT),
    unkeyed=(PLAIN, None, (NEW, [OLD]), Match.SAME, Match.DIFFERENT),
    retired_key=(PLAIN, OLD, (NEW, [OLD]), Match.SAME, Match.DIFFERENT),
    other_settings=(FingerprintSpec(ignore=(("t",),)), OLD, (NEW, [OLD]), Match.SAME, Match.UNKNOWN),
    key_forgotten=(PLAIN, OLD, (None,), Match.UNKNOWN, Match.UNKNOWN),
    secret_exchanged=(PLAIN, OLD, (FingerprintKey("k0", b"another secret of k0"),), Match.UNKNOWN, Match.UNKNOWN),
)
def test_a_record_under_other_keys_and_settings(
    spec: FingerprintSpec, before: FingerprintKey | None, now: Any, same: Match, other: Match
) -> None:
    """Where its secret is still there it is compared; after a change of settings, equal bytes alone are the same; of
    what was made by a lost secret nothing is known, which is not the same as being different."""
    recorded = Fingerprinter(spec, before).alternatives(digests())[0]
    route = Fingerprinter(PLAIN, *now)
    match, shown_by = compare(recorded, route.alternatives(digests()))
    assert match is same
    if same is Match.SAME:
        assert shown_by.key_id == recorded.key_id
        assert (shown_by == recorded) is (spec is PLAIN)
    assert compare(recorded, route.alternatives(digests(body=b"[]")))[0] is other
    if other is Match.DIFFERENT:
        assert compare(recorded, route.alternatives(digests(body=JSON.replace(b":", b": "))))[0] is Match.SAME


def test_keyed_digests_reveal_nothing() -> None:
    """A keyed fingerprint shares no byte string with the unkeyed one or with that under another key; nor does any
    representation show digests or secrets."""
    made = [Fingerprinter(PLAIN, key).alternatives(digests())[0] for key in (None, OLD, NEW)]
    assert len({part for one in made for part in (one.recipe, one.digest, one.raw)}) == 9
    assert digests().raw.hex() not in repr(digests())
    assert repr(digests().raw) not in repr(digests())
    assert "0123456789" not in repr(OLD)


def test_recipe_follows_settings() -> None:
    """The recipe changes with every setting, and not with the order or the case in which they are written."""
    specs = [
        PLAIN, FingerprintSpec(body=BodyForm.JSON), FingerprintSpec(ignore=(("a",),)), FingerprintSpec(only=(("a",),)),
        FingerprintSpec(ignore=(("a", "b"),)), FingerprintSpec(headers=(b"a",)),
    ]  # fmt: skip
    assert len({Fingerprinter(spec).alternatives(digests())[0].recipe for spec in specs}) == len(specs)
    one = FingerprintSpec(headers=(b"X-A", b"x-b"), ignore=(("a",), ("b",)))
    other = FingerprintSpec(headers=(b"X-B", b"x-a", b"Host"), ignore=(("b",), ("a",), ("b",)))
    assert one == other
    assert Fingerprinter(one).alternatives(digests())[0] == Fingerprinter(other).alternatives(digests())[0]


def test_stable_for_ever() -> None:
    """The digests are what they were: a record made by an older program compares under this one."""
    fingerprint = Fingerprinter(PLAIN).alternatives(digests())[0]
    assert (fingerprint.recipe.hex(), fingerprint.digest.hex(), fingerprint.raw.hex()) == (
        "047f1576f4e385e9b1f940e3f2413086",
        "a7dd01a4435321b65d7aa1712a71ce6b7dd250f41a24416e3affca0a9d5ec37f",
        "6fac1c6dd59d5513d7b12ba78263138b446259a05fc756723bf49eea3ddeac35",
    )
    overridden = digests(head(x_http_method_override=b"DELETE"))
    assert (overridden.canonical.hex(), overridden.raw.hex()) == (
        "0d2e717529ea9c309d4b80b00820e15b8798a158b31397e9fc10ccde62c0625c",
        "952c403552029f2b04e1e39b49573d70804ca5ce58b42c862d83fab8f72af62f",
    )
