"""Scopes of verified tokens: what the file must say, and what it becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app.life import StartError
from gateway.app.traffic import callers_of
from gateway.config import Placeholders, notices, parse
from gateway.config.scope import TokenIssuer, token_issuers
from gateway.observe.facts import Events
from tests.config.support import report, with_route

SECRET = "s" * 32
GOOD = {
    "issuer": "https://login.example/",
    "audience": "api",
    "keys": "discover",
    "claims": "[sub]",
}


def route(**changes: str) -> str:
    """A file with a scope of tokens; a setting that is empty is left out."""
    settings = ", ".join(f"{name}: {value}" for name, value in (GOOD | changes).items() if value)
    return with_route(f"scope: {{jwt: {{{settings}}}}}", without="scope")


def issuer(text: str) -> TokenIssuer:
    (found,) = token_issuers(parse(text).routes[0].scope)
    return found


def test_a_secret_is_not_shown() -> None:
    """Not in what a defect prints."""
    assert SECRET not in repr(issuer(route(**HS256)))


HS256 = {"keys": f"{{secret: {SECRET}}}", "algorithms": "[HS256]"}
MISTAKES = {
    "audience-missing": ({"audience": ""}, "jwt.audience: required, but missing"),
    "claims-missing": ({"claims": ""}, "jwt.claims: required, but missing"),
    "no-claims": ({"claims": "[]"}, "jwt.claims: expected a list of at least 1"),
    "claim-twice": ({"claims": "[sub, sub]"}, "jwt.claims[1]: this is listed already"),
    "claim-of-a-token": ({"claims": "[sub, jti]"}, "jwt.claims[1]: jti differs from token to token"),
    "none": ({"algorithms": "[none]"}, "jwt.algorithms[0]: expected RS256, "),
    "hmac-with-public-keys": ({"algorithms": "[HS256]"}, "jwt.algorithms[0]: HS256 is for a shared secret"),
    "algorithm-twice": ({"algorithms": "[ES256, ES256]"}, "jwt.algorithms[1]: this is listed already"),
    "secret-without-algorithms": (HS256 | {"algorithms": ""}, "jwt.algorithms: required with a secret: write [HS256]"),
    "public-with-a-secret": (HS256 | {"algorithms": "[RS256]"}, "jwt.algorithms[0]: RS256 needs public keys"),
    "short-secret": (HS256 | {"keys": "{secret: swordfish}"}, "jwt.keys.secret: expected a secret of at least 32"),
    "short-for-hs512": (HS256 | {"algorithms": "[HS512]"}, "jwt.algorithms[0]: HS512 needs a secret of at least 64"),
    "issuer-without-tls": ({"issuer": "http://login.example"}, "jwt.issuer: discover needs an issuer with an https"),
    "issuer-is-a-name": ({"issuer": "login"}, "jwt.issuer: discover needs an issuer with an https URL"),
    "keys-without-tls": ({"keys": "http://login.example/keys"}, "jwt.keys: expected discover, the https URL"),
    "keys-with-credentials": ({"keys": "https://u:swordfish@login.example/"}, "jwt.keys: expected discover"),
    "keys-relative": ({"keys": "keys.json"}, "jwt.keys: expected discover"),
    "keys-are-a-secret": ({"keys": "swordfish"}, "jwt.keys: expected discover"),
    "ca-for-a-file": ({"keys": "/k.pem", "ca": "/ca.pem"}, "jwt.ca: has no effect"),
    "ca-for-a-secret": (HS256 | {"ca": "/ca.pem"}, "jwt.ca: has no effect"),
    "long-leeway": ({"leeway": "1h"}, "jwt.leeway: expected a duration from 0s to 5m"),
}


@pytest.mark.parametrize(("changes", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(changes: dict[str, str], message: str) -> None:
    """One report each, at the setting, which shows no secret."""
    (line,) = report(route(**changes))
    assert line.partition(" ")[2].startswith(f"routes[0].scope.{message}")
    assert "swordfish" not in line


def test_an_issuer_twice() -> None:
    """Which of the two a token is for could not be said."""
    one = "{issuer: a, audience: b, keys: /k, claims: [sub]}"
    (line,) = report(with_route(f"scope: {{jwt: [{one}, {one}]}}", without="scope"))
    assert "routes[0].scope.jwt[1].issuer: this issuer is listed already" in line


def test_authorization_twice() -> None:
    """Two parts of a scope cannot be taken from one header."""
    one = "{issuer: a, audience: b, keys: /k, claims: [sub]}"
    scope = f"scope: {{compose: [{{jwt: {one}}}, {{api_key: Authorization}}]}}"
    (line,) = report(with_route(scope, without="scope"))
    assert "routes[0].scope.compose[1]: this is listed already" in line


@pytest.mark.parametrize(("claim", "count"), [("sub", 0), ("email", 1), ("sid", 1)])
def test_claims_that_users_or_sessions_change(claim: str, count: int) -> None:
    """They are allowed, with a remark: only the issuer's settings say whether they stay."""
    found = [str(notice) for notice in notices(parse(route(claims=f"[tenant, {claim}]")))]
    assert len(found) == count
    assert all(text.startswith(f"routes[0].scope: {claim} may change") for text in found)


@pytest.mark.parametrize("name", ["issuer", "audience", "keys", "ca"])
def test_without_its_environment(name: str) -> None:
    """A file can be checked where its variables are not set."""
    parse(route(**{name: '"${SOMETHING}"'}), stand_in=Placeholders())
    parse(route(keys='{secret: "${SOMETHING}"}', algorithms="[HS256]"), stand_in=Placeholders())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"keys": "{}/none.json"}, "cannot be used: .*No such file", id="no-file"),
        pytest.param({"keys": "{}/bad.json"}, "cannot be used: it is neither JSON nor PEM", id="no-keys"),
        pytest.param({"ca": "{}/bad.json"}, "cannot be used: .*holds no certificate", id="no-authority"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    """What is wrong with this machine ends a start; what is wrong with an issuer does not."""
    (tmp_path / "bad.json").write_text("<html>")
    text = route(**{name: value.format(tmp_path) for name, value in changes.items()})
    with pytest.raises(StartError, match=message):
        callers_of(parse(text), Events(), lambda: 0.0, lambda: 0.0)
