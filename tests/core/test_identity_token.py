"""Tokens: how they are read, and whom their claims name."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.identity.caller import TOKEN_BYTES_MAX, Token, TokenFault, claims_value, read_token


@dataclass(frozen=True)
class Named:
    """An issuer, as far as the core looks at it."""

    issuer: str = "https://a.example"
    audience: str = "api"
    claims: tuple[str, ...] = ("sub",)
    leeway: float = 30.0


ISSUER = Named()
HEADER = b'{"alg":"ES256","kid":"k1"}'
CLAIMS = {"iss": ISSUER.issuer, "aud": "api", "exp": 1_900_000_000.0, "sub": "u1"}


def segment(text: bytes) -> bytes:
    return urlsafe_b64encode(text).rstrip(b"=")


def compact(header: bytes = HEADER, payload: bytes | None = None, signature: bytes = b"signature") -> bytes:
    payload = json.dumps(CLAIMS).encode() if payload is None else payload
    return b".".join(segment(part) for part in (header, payload, signature))


MALFORMED = {
    "empty": b"",
    "encrypted": b".".join([segment(HEADER)] * 5),
    "header-list": compact(b"[]"),
    "no-algorithm": compact(b"{}"),
    "algorithm-list": compact(b'{"alg":["ES256"]}'),
    "two-key-ids": compact(b'{"alg":"ES256","kid":"k1","kid":"k2"}'),
    "two-subjects": compact(payload=b'{"iss":"https://a.example","sub":"u1","sub":"u2"}'),
    "not-a-number": compact(payload=b'{"iss":"https://a.example","exp":NaN}'),
    "number-beyond-floats": compact(payload=b'{"iss":"https://a.example","exp":' + b"9" * 400 + b"}"),
    "number-that-floats-round": compact(payload=b'{"iss":"https://a.example","sub":9007199254740993.0}'),
    "depth-bomb": compact(payload=b"[" * 8000),
    "other-encoding": compact(payload=json.dumps(CLAIMS).encode("utf-16")),
    "not-utf-8": compact(payload=b'{"iss":"\xff"}'),
    "padded": compact() + b"=",
    "junk-between": compact().replace(b".", b"!.", 1),
    "other-bits": compact(signature=b"a")[:-1] + b"R",
}


UNSUPPORTED = "The token needs an extension that is not supported."
REFUSED = dict.fromkeys(MALFORMED.values(), "The token is malformed.") | {
    compact(b'{"alg":"ES256","crit":["exp"]}'): UNSUPPORTED,
    compact(b'{"alg":"ES256","b64":true}'): UNSUPPORTED,
    b"x" * (TOKEN_BYTES_MAX + 1): f"The token is longer than {TOKEN_BYTES_MAX} bytes.",
}


@pytest.mark.parametrize(("credential", "text"), REFUSED.items(), ids=[*MALFORMED, "critical", "unencoded", "long"])
def test_malformed(credential: bytes, text: str) -> None:
    """What can be read in two ways, not at all, or by extensions that are not understood here, is no token."""
    assert read_token(credential) == TokenFault(text)


@given(st.binary(max_size=200))
def test_anything(credential: bytes) -> None:
    """Whatever comes is read or refused."""
    assert isinstance(read_token(credential), Token | TokenFault)
    assert isinstance(read_token(compact(payload=credential)), Token | TokenFault)


SUBJECTS = st.one_of(st.text(min_size=1, max_size=8), st.integers(), st.floats(allow_nan=False, allow_infinity=False))


@given(one=SUBJECTS, other=SUBJECTS)
def test_callers_are_told_apart(one: Any, other: Any) -> None:
    """Text is compared to the letter, numbers by their value; text is never a number, and anything else is nobody."""
    values = [claims_value(ISSUER, {"sub": each}) for each in (one, other)]
    is_same = isinstance(one, str) is isinstance(other, str) and one == other
    if not any(isinstance(value, TokenFault) for value in values):
        assert (values[0] == values[1]) == is_same
    for value in (None, "", True, [one], {"id": 1}):
        assert claims_value(ISSUER, {"sub": value}) == TokenFault("The token does not name its caller.")
    assert claims_value(ISSUER, {"sub": "\ud800"}) == TokenFault("The token is malformed.")
