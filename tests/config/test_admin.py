"""The section for operators: off unless it is asked for, and never with a weak or a visible token."""

from __future__ import annotations

import pytest

from gateway.config import notices
from tests.config.support import read, report, with_global, with_route

TOKEN = "0123456789abcdef"
SHORT = "expected a secret of at least 16 visible ASCII characters; make one with: openssl rand -hex 32"


def test_token() -> None:
    """A token of 16 characters is enough, and no representation shows it."""
    config = read(with_global("admin: {token: '${T}'}"), {"T": TOKEN})
    assert config.admin.token is not None
    assert config.admin.token.get_secret_value() == TOKEN
    assert TOKEN not in repr(config)


@pytest.mark.parametrize(
    "token", [TOKEN[1:], TOKEN + " x", TOKEN + "é", "x" * 1025], ids=["short", "space", "é", "long"]
)
def test_token_that_is_none(token: str) -> None:
    """A token that can be guessed, or that no header field could carry, is a mistake and is not repeated."""
    (line,) = report(with_global(f"admin: {{token: '{token}'}}"))
    assert line == f"1:16: admin.token: {SHORT}"


def test_section_written_as_a_secret() -> None:
    """A token in the place of the section, or of a key, is not repeated."""
    for text in (f"admin: {TOKEN}", f"admin: {{{TOKEN}: a}}"):
        assert TOKEN not in "".join(report(with_global(text)))


def test_collisions() -> None:
    """The admin port is neither that of callers nor that of probes; without a token it is no port at all."""
    taken = with_global("admin: {listen: 127.0.0.1:8080, token: " + TOKEN + "}")
    assert report(taken) == ["1:17: admin.listen: listen and admin.listen both use port 8080"]
    taken = with_global("status: {listen: '0.0.0.0:8082'}", "admin: {token: " + TOKEN + "}")
    assert report(taken) == ["1:18: status.listen: status.listen and admin.listen both use port 8082"]
    assert read(with_global("admin: {listen: 127.0.0.1:8080}")).admin.token is None


@pytest.mark.parametrize(
    ("name", "count"),
    [("Idempotancy-Key", 1), ("Idempotency-Key", 0), ("X-Idempotency-Key", 0), ("X-Request-Key", 0)],
)
def test_a_key_whose_header_is_nearly_the_usual_one(name: str, count: int) -> None:
    """Where a key is not required, a misspelt header leaves all requests unprotected."""
    found = notices(read(with_route(f"key: {{header: {name}}}", without="key")))
    assert [str(notice) for notice in found] == [
        f"routes[0].key: {name} is nearly Idempotency-Key; is it misspelt?"
    ] * count


def test_a_store_that_may_be_unreadable() -> None:
    """What is written for one start is remarked on for as long as it stands there."""
    (notice,) = notices(read(with_global("secrets: {unreadable: accept}")))
    assert notice.path == "secrets.unreadable"


def test_notices() -> None:
    """An address without a token, and one that others can reach, are worth a second look."""
    (off,) = notices(read(with_global("admin: {listen: 127.0.0.1:1}")))
    assert str(off) == "admin.listen: nothing listens here without admin.token or admin.tokens"
    (seen,) = notices(read(with_global("admin: {listen: 0.0.0.0:1, token: " + TOKEN + "}")))
    assert str(seen) == "admin.listen: the admin API speaks plain HTTP: its traffic shows the token"


def test_tokens_of_several() -> None:
    """Each has a name of its own, a secret of its own and a role; `token` is a name where `admin.token` is written."""
    entry = "{{name: {}, token: {}, role: viewer}}"
    config = read(with_global(f"admin: {{tokens: [{entry.format('vera', TOKEN)}]}}"))
    assert config.admin.is_on
    assert TOKEN not in repr(config)
    twice = f"[{entry.format('vera', TOKEN)}, {entry.format('vera', TOKEN)}]"
    assert [line.partition(": ")[2] for line in report(with_global(f"admin: {{tokens: {twice}}}"))] == [
        "admin.tokens[1].name: another token has this name already",
        "admin.tokens[1].token: another entry has this secret; make one for each",
    ]
    own = f"admin: {{token: {TOKEN}, tokens: [{entry.format('token', TOKEN + 'x')}]}}"
    (line,) = report(with_global(own))
    assert line.endswith("admin.tokens[0].name: another token has this name already")


_ROLES = "{operator: [support]}"
_PROXY = f"{{from: [10.0.0.0/8], name: X-Forwarded-User, roles: {_ROLES}}}"
_JWT = (
    "{{issuer: https://login.test, audience: console, keys: discover, claims: [email], header: {}, groups: groups, "
    f"roles: {_ROLES.replace('{', '{{').replace('}', '}}')}}}}}"
)


def test_sign_in_alone_opens_the_port() -> None:
    """It needs no token besides, and its secret is in no text."""
    config = read(with_global(f"admin: {{sign_in: {{secret: {TOKEN}, proxy: {_PROXY}}}}}"))
    assert config.admin.is_on
    assert TOKEN not in repr(config)
    assert read(with_global(f"admin: {{sign_in: {{secret: {TOKEN}, jwt: {_JWT.format('Authorization')}}}}}"))


@pytest.mark.parametrize(
    ("sign_in", "line"),
    [
        ("{secret: SECRET}", "admin.sign_in: say who names people: proxy or jwt"),
        (f"{{proxy: {_PROXY}}}", "admin.sign_in.secret: required"),
        ("{secret: short, proxy: PROXY}", "admin.sign_in.secret: expected a secret of at least 16 visible ASCII"),
        ("{secret: SECRET, proxy: {name: X-User, roles: ROLES}}", "admin.sign_in.proxy.from: required"),
        ("{secret: SECRET, proxy: {from: [10.0.0.1], roles: ROLES}}", "admin.sign_in.proxy.name: required"),
        ("{secret: SECRET, proxy: {from: [10.0.0.1], name: X-User}}", "admin.sign_in.proxy.roles: required"),
        (
            "{secret: SECRET, proxy: {from: [], name: X-User, roles: ROLES}}",
            "admin.sign_in.proxy.from: expected a list of at least 1",
        ),
        (
            "{secret: SECRET, proxy: {from: ['::/0'], name: X-User, roles: ROLES}}",
            "admin.sign_in.proxy.from[0]: this trusts everybody",
        ),
        (
            "{secret: SECRET, proxy: {from: [10.0.0.1], name: X-User, roles: {viewer: []}}}",
            "admin.sign_in.proxy.roles: nobody has a role",
        ),
        (
            "{secret: SECRET, proxy: {from: [10.0.0.1], name: Authorization, roles: ROLES}}",
            "admin.sign_in.proxy.name: this header holds a credential",
        ),
        (
            "{secret: SECRET, proxy: {from: [10.0.0.1], name: X-User, groups: x-user, roles: ROLES}}",
            "admin.sign_in.proxy.groups: this header names the person already",
        ),
        (f"{{secret: SECRET, jwt: {_JWT.format('Cookie')}}}", "admin.sign_in.jwt.header: this header is the browser's"),
        (
            f"{{secret: SECRET, jwt: {_JWT.format('X-Token').replace('audience: console, ', '')}}}",
            "admin.sign_in.jwt.audience: required",
        ),
    ],
)
def test_nobody_is_trusted_by_default(sign_in: str, line: str) -> None:
    """Names, addresses, roles and audiences are written, or the file is refused."""
    for word, text in {"SECRET": TOKEN, "PROXY": _PROXY, "ROLES": _ROLES}.items():
        sign_in = sign_in.replace(word, text)
    (found,) = report(with_global(f"admin: {{sign_in: {sign_in}}}"))
    assert line in found
