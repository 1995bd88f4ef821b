"""Signing in to the console by another's word: of a proxy that names people, and of an issuer of tokens."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import pytest

from gateway.admin.access import FAILURES_MAX, WINDOW_SECONDS, Throttle
from tests.admin.hand import Admin
from tests.admin.shell import doubt
from tests.admin.test_console import ADMIN, Consoled, consoled
from tests.admin.test_pages import HOSTILE, TOKENS, Browser
from tests.observe.scrape import Scrape
from tests.support import http
from tests.support.issuer import Issuer, signing_key
from tests.support.memory_store import ManualClock

SECRET = "a-secret-of-the-sessions"
ROLES = {"viewer": ["staff"], "operator": ["support"], "admin": ["sre"]}
PROXY = {"from": ["127.0.0.1/32"], "name": "X-Forwarded-User", "groups": "X-Forwarded-Groups", "roles": ROLES}


def named(it: Consoled, name: str, groups: str | None = None) -> Browser:
    added = [("X-Forwarded-User", name), *([] if groups is None else [("X-Forwarded-Groups", groups)])]
    return Browser(it.house.gateway.admin_address[1], added=added)


@asynccontextmanager
async def proxied(directory: Path, own: dict[str, Any] = ADMIN, **changes: Any) -> AsyncIterator[Consoled]:
    """A gateway whose console trusts a proxy on this machine."""
    proxy = {name: value for name, value in (PROXY | changes).items() if value is not None}
    async with consoled(directory, admin={**own, "sign_in": {"secret": SECRET, "proxy": proxy}}) as it:
        yield it


async def refused_sign_ins(it: Consoled) -> float:
    text = (await http.request(it.house.status_port, "GET", "/metrics")).body.decode()
    return Scrape(text).value("idempotency_admin_sign_ins_total", result="refused")


# -- a proxy ----------------------------------------------------------------------------------------------------------


async def test_a_proxy_names_a_person(tmp_path: Path) -> None:
    """One button, no token; what the person does stands in the audit by name, and the session is as any other. The
    proxy adds its header to what another page makes a browser send, too, and nothing comes of it."""
    async with proxied(tmp_path, {"listen": "127.0.0.1:0"}) as it:
        operation_id = await doubt(it.house)
        browser = named(it, "alice@example.com", "cooks, support")
        assert (await browser.get("/ui/")).status == 303
        assert "You come as alice@example.com, with the role operator." in (await browser.get("/ui/sign-in")).words
        for forged in ({"Origin": ""}, {"Origin": "http://evil.test"}, {"Sec_Fetch_Site": "cross-site"}):
            assert (await browser.go_on(**forged)).status == 403, forged
        signed_in = await browser.go_on()
        assert {"HttpOnly", "SameSite=Strict"} <= set((signed_in.header("Set-Cookie") or "").split("; "))
        assert "alice@example.com (operator)" in (await browser.page("/ui/")).text
        path = f"/ui/operations/{operation_id}/resolve"
        preview = await browser.submit(path, {"why": "seen", "way": "happened", "pasted": "HTTP/1.1 201 Created\n\n"})
        form = preview.forms[path]
        assert (await browser.post(path, {**form, "form_token": ""})).status == 403
        assert (await browser.post(path, form, Origin="http://evil.test")).status == 403
        assert (await browser.post(path, form)).status == 200
        audit = (await browser.get("/ui/audit")).words
        assert "alice@example.com" in audit
        assert "signed in as operator from 127.0.0.1, vouched for" in audit
        assert (await browser.get(f"/ui/operations/{operation_id}/purge")).status == 403


async def test_the_role_of_a_name(tmp_path: Path) -> None:
    """Without a header for groups, roles are by name, and such a header means nothing."""
    async with proxied(tmp_path, groups=None, roles={"operator": ["alice"]}) as it:
        assert (await named(it, "alice").go_on()).status == 303
        assert (await named(it, "bob", "alice").go_on()).status == 401


# The headers for the name and for the groups, and why nobody is vouched for.
NOBODY = [
    (["alice"], [], "alice has no role here"),
    (["alice"], ["STAFF,root,"], "alice has no role here"),
    (["x" * 129], ["sre"], "nobody is named"),
    (["a\tb"], ["sre"], "nobody is named"),
    (["alice", "eve"], ["sre"], "X-Forwarded-User is given more than once"),
    (["eve"], ["cooks", "sre"], "X-Forwarded-Groups is given more than once"),
    ([], ["sre"], ""),
]


async def test_whom_nobody_vouches_for(tmp_path: Path) -> None:
    """They have no session, and learn why; a token still signs in. A name with underscores is no such header."""
    async with proxied(tmp_path) as it:
        ada = await it.signed_in("ada")
        for number, (names, groups, why) in enumerate(NOBODY, 1):
            added = [("X_Forwarded_User", "alice"), *(("X-Forwarded-User", name) for name in names)]
            added += [("X-Forwarded-Groups", each) for each in groups]
            browser = Browser(ada.port, added=added)
            page = await browser.get("/ui/sign-in")
            assert why in page.words
            assert "Go on" not in page.words
            assert (await browser.go_on()).status == 401
            assert await refused_sign_ins(it) == number
            assert f"was refused: {why or 'this request names nobody'}" in (await ada.get("/ui/audit")).words
            assert (await browser.sign_in("vera")).status == 303
            assert "vera (viewer)" in (await browser.page("/ui/")).text


async def test_a_spoofed_header(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From an address that is not the proxy's it is ignored, counted each time, and noted ten times a minute."""
    caplog.set_level(logging.INFO, "gateway")
    async with proxied(tmp_path, **{"from": ["10.0.0.0/8", "::1/128"]}) as it:
        eve = named(it, "alice", "sre")
        assert "is not believed from 127.0.0.1" in (await eve.get("/ui/sign-in")).words
        assert (await eve.go_on()).status == 401
        for _ in range(20):
            assert (await eve.get("/ui/")).status == 303
        assert await refused_sign_ins(it) == 22
        spoofed = [line for line in caplog.messages if "X-Forwarded-User is not believed from 127.0.0.1" in line]
        assert len(spoofed) == 10
        assert (await eve.sign_in("vera")).status == 303
        page = await eve.page("/ui/audit")
        assert "vera (viewer)" in page.text
        assert page.text.count("X-Forwarded-User is not believed") == 10


async def test_a_session_needs_the_same_word_again(tmp_path: Path) -> None:
    """A cookie alone is none, nor one with another's name; a role is that of each request."""
    async with proxied(tmp_path) as it:
        alice = named(it, "alice", "sre")
        await alice.go_on()
        assert (await Browser(alice.port, alice.cookie).get("/ui/")).status == 303
        bob, lower, none = named(it, "bob", "sre"), named(it, "alice", "staff"), named(it, "alice", "cooks")
        for browser in (bob, lower, none):
            browser.cookie = alice.cookie
        assert (await bob.get("/ui/")).status == 303
        assert (await none.get("/ui/")).status == 303
        assert "alice (viewer)" in (await lower.page("/ui/")).text
        assert (await lower.get("/ui/configuration/reload")).status == 403


async def test_names_and_groups(tmp_path: Path) -> None:
    """The role is the highest of the groups that are listed, with blanks or without. A name is text wherever it is
    shown, and one with the mark of sessions is one name. It has not the session of a token that is called so, nor the
    other way round."""
    async with proxied(tmp_path) as it:
        for groups, role in {"staff": "viewer", "staff,sre": "admin", " support ,staff": "operator"}.items():
            browser = named(it, "alice", groups)
            assert (await browser.go_on()).status == 303
            assert f"alice ({role})" in (await browser.page("/ui/")).text
        for name in (HOSTILE, "a|b", "ada|1|00|http://localhost"):
            browser = named(it, name, "staff")
            assert b"<script>alert" not in (await browser.get("/ui/sign-in")).body
            assert (await browser.go_on()).status == 303
            page = await browser.get("/ui/audit")
            assert b"<script>alert" not in page.body
            assert name in page.text
        ada, vouched = await it.signed_in("ada"), named(it, "ada", "staff")
        vouched.cookie = ada.cookie
        assert "ada (admin)" in (await vouched.page("/ui/")).text
        await vouched.go_on()
        assert "ada (viewer)" in (await vouched.page("/ui/")).text
        assert (await Browser(ada.port, vouched.cookie).get("/ui/")).status == 303


async def test_a_proxy_is_not_for_the_api(tmp_path: Path) -> None:
    """Any web page can make a browser send what a proxy adds to; programs need a token. A header with the proxy's own
    credentials is no wrong token, and nobody behind it is throttled for it."""
    async with proxied(tmp_path) as it:
        browser = named(it, "alice", "sre")
        await browser.go_on()
        assert (await browser.get("/operations")).status == 401
        assert (await browser.upload("/config/reload", b"{}", "application/json")).status == 401
        for value in ("Basic YWxpY2U6", "Bearer a.b.c"):
            browser = named(it, "alice", "sre")
            browser.added.append(("Authorization", value))
            await browser.go_on()
            assert [(await browser.get("/ui/")).status for _ in range(12)] == [200] * 12
            assert (await browser.sign_in("vera")).status == 303


async def test_a_sign_out_says_what_it_ends(tmp_path: Path) -> None:
    """The session of the console alone, which is over; the proxy names the person all the same."""
    async with proxied(tmp_path) as it:
        for browser, is_named in ((named(it, "alice", "sre"), True), (await it.signed_in("vera"), False)):
            if is_named:
                await browser.go_on()
            out = await browser.post("/ui/sign-out", (await browser.page("/ui/")).forms["/ui/sign-out"])
            assert (out.header("Set-Cookie") or "").startswith('idempotency_gateway_session=""')
            page = (await browser.get(out.header("Location") or "")).words
            assert "You are signed out of this console." in page
            assert ("sign out at the proxy" in page) is is_named


async def test_a_reload_changes_roles(tmp_path: Path) -> None:
    """From then on, for sessions that have begun; another secret ends them."""
    async with proxied(tmp_path) as it:
        browser, ada = named(it, "alice", "support"), await it.signed_in("ada")
        await browser.go_on()
        changes = (("- support", "- cooks", 303), ("- cooks", "- support", 200), (SECRET, f"{SECRET}-2", 303))
        for old, new, status in changes:
            it.rewrite(old, new)
            assert (await ada.submit("/ui/configuration/reload", {"why": "a change"})).status == 200
            assert (await browser.get("/ui/")).status == status
        assert SECRET not in (await ada.page("/ui/configuration")).text


# -- an issuer --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def issued(
    directory: Path, header: str, *, is_away: bool = False, **changes: Any
) -> AsyncIterator[tuple[Consoled, Issuer]]:
    """A gateway whose console takes the tokens of an issuer."""
    async with Issuer() as issuer:
        if is_away:
            await issuer.leave()
        jwt = {**issuer.section(claims=["email"]), "header": header, "groups": "groups", "roles": ROLES} | changes
        async with consoled(directory, admin={**ADMIN, "sign_in": {"secret": SECRET, "jwt": jwt}}) as it:
            yield it, issuer


def handed(it: Consoled, header: str, token: str) -> Browser:
    value = f"Bearer {token}" if header == "Authorization" else token
    return Browser(it.house.gateway.admin_address[1], added=[(header, value)])


@pytest.mark.parametrize("header", ["Authorization", "X-Forwarded-Access-Token"])
async def test_a_token_names_a_person(tmp_path: Path, header: str) -> None:
    """By its claims, with the role of a group; a change needs the form all the same, whichever header has it."""
    async with issued(tmp_path, header) as (it, issuer):
        operation_id = await doubt(it.house)
        browser = handed(it, header, issuer.token(time(), email="alice@example.com", groups=["cooks", "support"]))
        assert (await browser.get("/ui/")).status == 303
        assert (await browser.go_on()).status == 303
        assert "alice@example.com (operator)" in (await browser.page("/ui/")).text
        path = f"/ui/operations/{operation_id}/resolve"
        form = {"why": "seen", "way": "happened", "pasted": "HTTP/1.1 201 Created\n\n", "confirmed": "yes"}
        assert (await browser.post(path, form)).status == 403
        whole = {**(await browser.page(path)).forms[path], **form}
        assert (await browser.post(path, whole, Origin="")).status == 403
        assert (await browser.post(path, whole)).status == 200
        about = await Admin(browser.port, TOKENS["vera"])("GET", f"/operations/{operation_id}")
        assert [audit["who"] for audit in about.json()["audits"]] == ["alice@example.com"]
        assert (await browser.get("/operations")).status == 401


def unsigned(issuer: Issuer, **claims: Any) -> str:
    """A token that says that it needs no signature."""
    parts = ({"alg": "none"}, issuer.claims(time(), **claims))
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


NOBODYS: dict[str, tuple[dict[str, Any], str]] = {
    "expired": ({"exp": 1}, "The token has expired"),
    "signature": ({"key": replace(signing_key("b"), key_id="k1")}, "The signature of the token is not its issuer's"),
    "nameless": ({"email": None}, "The token does not name its caller"),
    "unprintable": ({"email": "a\nb"}, "nobody is named"),
    "no-groups": ({"groups": None}, "alice has no role here"),
    "others": ({"groups": ["STAFF", 7, ["sre"]]}, "alice has no role here"),
    "joined": ({"groups": "sre,staff"}, "alice has no role here"),
    "alg-none": ({"alg": "none"}, "signed by an algorithm that is not accepted"),
}


@pytest.mark.parametrize("header", ["Authorization", "X-Forwarded-Access-Token"])
async def test_a_token_that_names_nobody(tmp_path: Path, header: str) -> None:
    """It signs nobody in, says why, and is no failure of whoever is behind the same proxy."""
    async with issued(tmp_path, header) as (it, issuer):
        for number, (changes, why) in enumerate(NOBODYS.values(), 1):
            claims = {"email": "alice", "groups": ["sre"]} | changes
            make = unsigned if claims.pop("alg", "") else lambda issuer, **claims: issuer.token(time(), **claims)
            browser = handed(it, header, make(issuer, **claims))
            for _ in range(12):
                assert why in (await browser.get("/ui/sign-in")).words
            assert (await browser.go_on()).status == 401
            assert await refused_sign_ins(it) == number
            assert (await browser.sign_in("vera")).status == 303


async def test_a_session_ends_with_its_token(tmp_path: Path) -> None:
    """One that has expired has no session, and a refreshed one has it again. Two headers name nobody, whatever each of
    them says."""
    async with issued(tmp_path, "X-Token", leeway="0s") as (it, issuer):
        now = time()
        fresh = ("X-Token", issuer.token(now, email="alice", groups=["sre"]))
        expired = ("X-Token", issuer.token(now, email="alice", groups=["sre"], exp=int(now)))
        browser = handed(it, *fresh)
        await browser.go_on()
        for added, status in (([fresh], 200), ([expired], 303), ([fresh], 200), ([fresh, fresh], 303)):
            browser.added = added
            assert (await browser.get("/ui/")).status == status
        assert "X-Token is given more than once" in (await browser.get("/ui/sign-in")).words
        assert (await browser.go_on()).status == 401


async def test_an_issuer_that_is_away(tmp_path: Path) -> None:
    """Nobody is signed in by a token that cannot be verified; a token of the gateway's own does."""
    async with issued(tmp_path, "X-Token", is_away=True) as (it, issuer):
        browser = handed(it, "X-Token", issuer.token(time(), email="alice", groups=["sre"]))
        assert "The keys of the token's issuer are not known" in (await browser.get("/ui/sign-in")).words
        assert (await browser.go_on()).status == 401
        assert (await browser.sign_in("vera")).status == 303


async def test_a_wrong_token_is_still_throttled(tmp_path: Path) -> None:
    """Where signed tokens come in Authorization, too: what is none of them counts."""
    async with issued(tmp_path, "Authorization") as (it, _):
        browser = Browser(it.house.gateway.admin_address[1], added=[("Authorization", "Bearer guessed")])
        statuses = [(await browser.get("/ui/")).status for _ in range(11)]
        assert statuses == [401] * 10 + [429]
        browser.added = [("Authorization", f"Bearer {TOKENS['ada']}")]
        assert (await browser.get("/ui/")).status == 429


def test_addresses_do_not_share() -> None:
    """One address that is wrong keeps no other out; one network of 64 bits of IPv6 counts as one address. Many
    addresses push out those that failed longest ago."""
    clock = ManualClock(0)
    kept = Throttle(lambda: clock() / 1_000_000)
    for number in range(FAILURES_MAX):
        kept.failed("192.0.2.1")
        kept.failed(f"2001:db8::{number:x}")
    for address in ("192.0.2.1", "::ffff:192.0.2.1", "2001:db8::ffff"):
        assert kept.wait_seconds(address) == WINDOW_SECONDS, address
    for address in ("192.0.2.2", "2001:db8:0:1::1"):
        assert kept.wait_seconds(address) == 0.0, address
    clock.advance(WINDOW_SECONDS - 1)
    assert kept.wait_seconds("192.0.2.1") == 1.0
    for number in range(1000):
        kept.failed(f"10.0.{number // 256}.{number % 256}")
    assert kept.wait_seconds("192.0.2.1") == 0.0
    clock.advance(1)
    assert kept.wait_seconds("2001:db8::ffff") == 0.0
    assert kept.failed("192.0.2.1") == 1
