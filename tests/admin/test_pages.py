"""The console over HTTP, as a browser sends it: who gets in, what pages show, and what no other page can make it do."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlencode
from uuid import UUID

import pytest

from gateway.admin.access import FAILURES_MAX, SESSION_SECONDS, Authentication, people_of
from gateway.admin.api import SECURITY_HEADERS, AdminApi
from gateway.admin.console import Console, Process
from gateway.admin.resolution import Malformed
from gateway.core.identity.body import parse_pointer
from gateway.core.operation import Record, State
from gateway.core.outcome import Redaction
from gateway.observe.facts import Events
from gateway.store.base import Indefinite, NotApplied
from gateway.store.journal.journal import HostJournals
from tests.admin.hand import LEASE_SECONDS, POLICIES, SETTLE_SECONDS, TREATMENT, Admin, Desk
from tests.support import http
from tests.support.http import Response

TOKENS = {"vera": "0123456789abcdef-viewer", "olga": "0123456789abcdef-operator", "ada": "0123456789abcdef-admin"}
PEOPLE = [("vera", TOKENS["vera"], "viewer"), ("olga", TOKENS["olga"], "operator"), ("ada", TOKENS["ada"], "admin")]
PAID = "<b>paid</b>"
RESPONSE = f"HTTP/1.1 201 Created\r\nContent-Type: text/html\r\nX-Debug: 1\r\n\r\n{PAID}"
FORCED = {"way": "never_happened", "force": "yes", "confirmed": "yes"}
HOSTILE = "<script>alert(1)</script>\"'&"
PAGES = ["", "operations", "find", "dead-letters", "sinks", "pauses", "journal", "memory", "audit", "routes", "explain"]


class Page(HTMLParser):
    """A response, and what its page has: its text, its links, and its forms with their fields."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.status, self.body, self.header = response.status, response.body, response.header
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.forms: dict[str, dict[str, str]] = {}
        self._form: dict[str, str] = {}
        self.text = ""
        self.feed(response.body.decode(errors="replace"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = dict(attrs)
        self.elements.append((tag, about))
        if tag == "form":
            self._form = self.forms.setdefault(about.get("action") or "", {})
        elif tag == "input" and about.get("type") == "hidden":
            self._form[about["name"] or ""] = about.get("value") or ""

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())

    @property
    def links(self) -> list[str]:
        return [about.get("href") or "" for tag, about in self.elements if tag == "a"]


@dataclass
class Browser:
    """A browser with one cookie; a proxy before it may have `added` headers."""

    port: int
    cookie: str = ""
    host: str = "localhost"
    extra: dict[str, str] = field(default_factory=dict)
    added: list[tuple[str, str]] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def get(self, path: str) -> Page:
        return await self._send("GET", path, {})

    async def page(self, path: str) -> Page:
        page = await self.get(path)
        assert page.status == 200, page.body
        return page

    async def post(self, path: str, form: dict[str, str], **headers: str) -> Page:
        given = {"Origin": self.origin, "Sec-Fetch-Site": "same-origin", **self.extra}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._send("POST", path, given, urlencode(form).encode())

    async def upload(self, path: str, body: bytes, content_type: str = "multipart/form-data; boundary=B") -> Page:
        """Send a form that may have a file."""
        return await self._send("POST", path, {"Origin": self.origin}, body, content_type)

    async def _send(
        self,
        method: str,
        path: str,
        given: dict[str, str],
        body: bytes = b"",
        content_type: str = "application/x-www-form-urlencoded",
    ) -> Page:
        headers = [("Host", f"{self.host}:{self.port}"), *self.added]
        headers += [(name, value) for name, value in given.items() if value]
        if self.cookie:
            headers.append(("Cookie", self.cookie))
        if body:
            headers.append(("Content-Type", content_type))
        response = await http.request(self.port, method, path, headers, body)
        for name, value in SECURITY_HEADERS.items():
            if not (name == "Cache-Control" and "/static/" in path):
                assert response.header(name) == value, (path, name)
        return Page(response)

    async def sign_in(self, name: str) -> Page:
        return await self.go_on({"token": TOKENS.get(name, name)})

    async def go_on(self, form: dict[str, str] | None = None, **headers: str) -> Page:
        """Sign in, without a form as whom a proxy or a token names."""
        response = await self.post("/ui/sign-in", {"vouched": "yes"} if form is None else form, **headers)
        if response.status == 303:
            self.cookie = (response.header("Set-Cookie") or "").partition(";")[0]
        return response

    async def submit(self, path: str, form: dict[str, str]) -> Page:
        """Fill in the form of a page, and send it."""
        page = await self.page(path)
        return await self.post(path, {**page.forms[path], **form})


def multipart(fields: dict[str, str], file: bytes) -> bytes:
    """A form with these fields and a file."""
    parts = [(f'name="{name}"', value.encode()) for name, value in fields.items()]
    parts.append(('name="file"; filename="f"', file))
    head = b"--B\r\nContent-Disposition: form-data; "
    return b"".join(head + name.encode() + b"\r\n\r\n" + value + b"\r\n" for name, value in parts) + b"--B--\r\n"


@dataclass
class Port:
    """An admin port with the console on the model store, and the clocks of its throttle and sessions."""

    desk: Desk
    port: int
    now: float = 1_000_000.0

    def browser(self) -> Browser:
        return Browser(self.port)

    async def signed_in(self, name: str) -> Browser:
        browser = self.browser()
        assert (await browser.sign_in(name)).status == 303
        return browser

    def program(self, name: str) -> Admin:
        return Admin(self.port, TOKENS[name])

    async def opened(
        self, name: str, state: State = State.IN_DOUBT, verb: str = "resolve"
    ) -> tuple[Record, Browser, str]:
        """An operation in this state, whoever signed in, and the path of the form that changes it so."""
        record = await self.desk.in_state(state)
        return record, await self.signed_in(name), f"/ui/operations/{record.identity.operation_id}/{verb}"


async def nothing_explained(request: bytes, peer: str, response: int | None, with_record: bool) -> dict[str, Any]:
    """Satisfies `Explain`."""
    raise Malformed("there is nothing to explain with")


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Port]:
    """The console on the model store."""
    desk = Desk()
    await desk.store.start()
    port = Port(desk, 0)
    people = people_of(PEOPLE)
    authentication = Authentication(people, ["console.test"], clock=lambda: port.now, wall_clock=lambda: port.now)
    process = Process(
        lambda: {"durable": "up", "fast": "absent", "memory": "whole"},
        lambda: HOSTILE,
        lambda: "0123456789ab",
        lambda: {"charge": {HOSTILE: 7}},
        HostJournals(tmp_path, "shop"),
        nothing_explained,
    )
    console = Console(desk.operations, authentication, process)
    api = AdminApi(desk.operations, authentication, Events(), response_bytes_max=1000, pages=console)
    port.port = await api.port.start("127.0.0.1", 0)
    try:
        yield port
    finally:
        await api.port.stop()


@pytest.fixture
async def vera(port: Port) -> Browser:
    """The browser of a viewer who signed in."""
    return await port.signed_in("vera")


def away(desk: Desk, monkeypatch: pytest.MonkeyPatch, error: Exception, *verbs: str) -> None:
    """From now on these verbs of the store raise this."""

    async def fails(*_: object, **__: object) -> None:
        raise error

    for verb in verbs:
        monkeypatch.setattr(desk.store, verb, fails)


READS = ("read", "find", "tally", "backlog", "audits", "latest_audits", "sinks", "check_memory", "pause_audits")


# -- who gets in ------------------------------------------------------------------------------------------------------


async def test_strangers_do_not_keep_operators_out(port: Port) -> None:
    """Whoever sends a sign-in and never its end takes no place of those with a token."""
    head = (
        f"POST /ui/sign-in HTTP/1.1\r\nHost: localhost:{port.port}\r\nOrigin: http://localhost:{port.port}\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\n"
    )
    vera = await port.signed_in("vera")
    async with AsyncExitStack() as stack:
        for _ in range(20):
            connection = await stack.enter_async_context(http.Connection(port.port))
            await connection.send(head.encode())
        # Each connection is served in the order of its arrival.
        assert (await port.browser().post("/ui/sign-in", {"token": "wrong"})).status == 503
        assert (await vera.get("/ui/")).status == 200


async def test_a_sign_in_that_is_none(port: Port) -> None:
    """It is refused by its head, and not by a failure."""
    for version_and_host, length, status in (("HTTP/1.0", 0, 421), ("HTTP/1.1\r\nHost: localhost", 70_000, 413)):
        text = f"POST /ui/sign-in {version_and_host}\r\nOrigin: http://localhost\r\nContent-Length: {length}\r\n\r\n"
        assert (await http.exchange(port.port, text.encode(), method="POST")).status == status


async def test_signing_in(port: Port) -> None:
    """Without a session every page leads to the sign-in; with one, and until one signs out, to itself."""
    browser = port.browser()
    for path in ("/ui/", "/ui/operations", "/ui/no-such-page"):
        response = await browser.get(path)
        target, _, asked = (response.header("Location") or "").partition("?")
        assert (response.status, target) == (303, "/ui/sign-in")
        assert asked == ("" if path == "/ui/" else f"next={quote_plus(path)}")
    wrong = await browser.sign_in("a token that nobody has")
    assert wrong.status == 401
    assert "This token is not known here." in wrong.body.decode()
    response = await browser.sign_in("vera")
    cookie = response.header("Set-Cookie") or ""
    assert {"HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={SESSION_SECONDS}"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert TOKENS["vera"] not in cookie
    page = await browser.page("/ui/")
    assert "vera (viewer)" in page.text
    out = await browser.post("/ui/sign-out", page.forms["/ui/sign-out"])
    assert out.status == 303
    assert 'idempotency_gateway_session=""' in (out.header("Set-Cookie") or "")


async def test_pages(vera: Browser) -> None:
    """Each page is below one of the six entries, which every page leads to, and has one heading and one main part."""
    entries = [link for link in (await vera.page("/ui/")).links if link.startswith("/ui/")][:6]
    below = {link for entry in entries for link in (await vera.page(entry)).links}
    for path in PAGES:
        assert f"/ui/{path}" in below
        assert set(entries) <= set((await vera.page(f"/ui/{path}")).links)
        page = await vera.page(f"/ui/{path}")
        assert [tag for tag, _ in page.elements if tag in ("h1", "main")] == ["main", "h1"]
        assert not [tag for tag, about in page.elements if "style" in about or any(n.startswith("on") for n in about)]
    assert (await vera.get("/ui/no-such-page")).status == 404
    assert HOSTILE in (await vera.page("/ui/configuration")).text


async def test_static_files(port: Port) -> None:
    """They need no session, and may be kept for ever, because their names change with their content."""
    page = await port.browser().get("/ui/sign-in")
    urls = [about.get("href") or about.get("src") or "" for tag, about in page.elements if tag in ("link", "script")]
    assert len(urls) == 3
    for url in urls:
        response = await port.browser().get(url)
        assert (response.status, response.header("Cache-Control")) == (200, "public, max-age=31536000, immutable")


async def test_sessions_end(port: Port) -> None:
    """After twelve hours, and with their token; a changed cookie is none."""
    browser = await port.signed_in("ada")
    name, _, value = browser.cookie.partition("=")
    for broken in (value[:-1], value.replace(".", ""), f"x{value}", "é", value.partition(".")[0]):
        assert (await Browser(port.port, f"{name}={broken}").get("/ui/")).status == 303
    port.now += SESSION_SECONDS - 1
    assert (await browser.get("/ui/")).status == 200
    port.now += 1
    assert (await browser.get("/ui/")).status == 303


async def test_sign_in_is_throttled(port: Port) -> None:
    """With the same count as the API's: then not even the right token gets in, and the page says for how long."""
    browser = port.browser()
    for _ in range(FAILURES_MAX):
        assert (await browser.sign_in("wrong")).status == 401
    response = await browser.sign_in("ada")
    assert (response.status, response.header("Set-Cookie")) == (429, None)
    assert (await port.program("ada")("GET", "/operations")).status == 429


async def test_a_session_is_not_for_the_api(port: Port) -> None:
    """Programs send their token; a cookie is not looked at. Their errors stay problem documents."""
    browser = await port.signed_in("ada")
    response = await browser.get("/operations")
    assert (response.status, response.header("Content-Type")) == (401, "application/problem+json")
    assert (await browser.get("/")).status == 401


# -- other pages ------------------------------------------------------------------------------------------------------


async def test_hosts(port: Port) -> None:
    """A name that somebody else made resolve to this address reaches nothing; localhost, addresses and own names do."""
    for host, status in {
        "localhost": 303, "127.0.0.1": 303, "console.test": 303, "LOCALHOST": 303,
        "evil.test": 421, "127.0.0.1.evil.test": 421, "localhost.evil.test": 421, "x@localhost": 421,
    }.items():  # fmt: skip
        browser = Browser(port.port, host=host)
        assert (await browser.get("/ui/")).status == status, host
    assert (await Browser(port.port, host="evil.test").sign_in("ada")).status == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": ""},
        {"Origin": "null"},
        {"Origin": "http://evil.test"},
        {"Origin": "http://localhost:1"},
        {"Sec_Fetch_Site": "cross-site"},
    ],
    ids=lambda headers: "-".join(next(iter(headers.items()))),
)
async def test_forged_origin(port: Port, headers: dict[str, str]) -> None:
    """Neither a change nor a sign-in comes from another page, also not from another port of the same host."""
    record, browser, path = await port.opened("ada", State.COMPLETED, "purge")
    form = {**(await browser.page(path)).forms[path], "why": "forged"}
    assert (await browser.post(path, form, **headers)).status == 403
    assert (await browser.post("/ui/sign-in", {"token": TOKENS["ada"]}, **headers)).status == 403
    assert port.desk.record(record.identity.operation_id) == record
    # Plain HTTP: browsers leave `Sec-Fetch-Site` out.
    assert (await browser.post(path, form, Sec_Fetch_Site="")).status == 200


async def test_form_tokens(port: Port) -> None:
    """A form is of one session and one path: another's token, or none, changes nothing."""
    record, browser, path = await port.opened("ada", State.COMPLETED, "purge")
    other = await port.signed_in("ada")
    elsewhere = (await browser.page("/ui/find")).forms["/ui/find"]
    for form in ({}, elsewhere, (await other.page(path)).forms[path]):
        assert (await browser.post(path, {**form, "why": "forged"})).status == 403
    assert port.desk.record(record.identity.operation_id) == record


async def test_a_proxy_of_an_own_name(port: Port) -> None:
    """Behind a TLS proxy that writes its own `Host`, a page of a configured name is an own one."""
    browser = Browser(port.port, host="127.0.0.1", extra={"Origin": "https://console.test"})
    response = await browser.sign_in("ada")
    assert "Secure" in (response.header("Set-Cookie") or "")
    record = await port.desk.in_state(State.COMPLETED)
    path = f"/ui/operations/{record.identity.operation_id}/purge"
    form = {**(await browser.page(path)).forms[path], "why": "asked to"}
    assert (await browser.post(path, form, Origin="http://console.test")).status == 403
    assert (await browser.post(path, form)).status == 200


# -- roles ------------------------------------------------------------------------------------------------------------


async def test_force_needs_an_admin(port: Port) -> None:
    """An operator resolves, but does not overrule a refusal, over the API or the page."""
    record, browser, path = await port.opened("olga")
    operation_id = record.identity.operation_id
    asked = {"never_happened": True, "force": True, "why": "sure"}
    assert (await port.program("olga")("POST", f"/operations/{operation_id}/resolve", asked)).status == 403
    early = await browser.submit(path, {"way": "never_happened", "why": "sure of it"})
    assert (early.status, "needs the role admin" in early.text) == (409, True)
    forced = {**FORCED, "why": "sure", "typed": str(operation_id)[:8]}
    assert (await browser.submit(path, forced)).status == 403
    assert port.desk.record(operation_id) == record
    admin = await port.signed_in("ada")
    assert (await admin.submit(path, {**forced, "typed": "wrong"})).status == 400
    assert (await admin.submit(path, forced)).status == 200
    assert port.desk.record(operation_id).state is State.RELEASED


# -- what is shown and done -------------------------------------------------------------------------------------------


async def test_resolving(port: Port) -> None:
    """Pasted, previewed, confirmed; nothing changes before that, and the audit has the name of the token, also of who
    read the response."""
    record, browser, path = await port.opened("olga")
    operation_id = record.identity.operation_id
    assert "1 operation is in doubt" in (await browser.page("/ui/")).text
    assert path in (await browser.page(f"/ui/operations/{operation_id}")).links
    first = await browser.page(path)
    assert current_step(first) == "1"
    assert "Each repeat gets it for 1h" in first.words
    assert (await browser.submit(path, {"way": "happened", "why": "seen", "pasted": "paid"})).status == 400
    page = await browser.submit(path, {"way": "happened", "why": "seen in the ledger", "pasted": RESPONSE})
    assert (page.status, current_step(page)) == (200, "2")
    for text in (str(operation_id), "it completed with status 201", "Dropped: X-Debug.", "What repeats will get", PAID):
        assert text in page.text
    assert port.desk.record(operation_id) == record
    done = await browser.post(path, page.forms[path])
    assert (done.status, current_step(done)) == (200, "3")
    for text in (str(operation_id), "What repeats get", PAID, "Content-Type", "seen in the ledger"):
        assert text in done.text
    resolved = port.desk.record(operation_id)
    assert (resolved.state, resolved.response.body) == (State.COMPLETED, PAID.encode())
    assert "The same command has resolved it already" in (await browser.post(path, page.forms[path])).text
    file = await browser.get(f"/ui/operations/{operation_id}/response")
    assert file.header("Content-Type") == "application/octet-stream"
    assert (file.header("Content-Disposition") or "").startswith("attachment")
    assert file.body.endswith(PAID.encode())
    audit = (await browser.page("/ui/audit")).text
    for text in ("olga", "seen in the ledger", f"read the response of operation {operation_id}"):
        assert text in audit


def current_step(page: Page) -> str:
    """The step of a resolution that a page says it is."""
    assert [about for _, about in page.elements if about.get("aria-current") == "step"]
    (label,) = [about["aria-label"] or "" for tag, about in page.elements if tag == "ol"]
    return label.removeprefix("Step ").removesuffix(" of 3")


async def test_the_way_back(port: Port) -> None:
    """From the preview, and from a mistake, the first step has what was written; a file has to be chosen again."""
    record, browser, path = await port.opened("olga")
    pasted = RESPONSE.replace("\r\n", "\n")
    form = {"way": "happened", "why": "seen in the ledger", "pasted": pasted}
    preview = await browser.submit(path, form)
    page = await browser.post(path, {**preview.forms[path], "back": "yes"})
    assert (page.status, current_step(page)) == (200, "1")
    assert pasted in page.text
    assert "seen in the ledger" in [about.get("value") for _, about in page.elements]
    mistaken = await browser.submit(path, {**form, "pasted": "paid &amp; sent"})
    assert mistaken.status == 400
    assert "paid &amp; sent" in mistaken.text
    assert port.desk.record(record.identity.operation_id) == record


def keeping(port: Port, **changes: Any) -> None:
    """From now on responses are kept so."""
    treatment = replace(TREATMENT, keep=replace(TREATMENT.keep, **changes))
    port.desk.operations.policies = replace(POLICIES, routes=[replace(POLICIES.routes[0], treatment=treatment)])


async def test_the_body_that_is_shown(port: Port) -> None:
    """As text, and no more than its beginning, cut between characters. What is no text is not shown, and what is too
    long for the route is said not to be kept."""
    _, browser, path = await port.opened("olga")
    fields = {**(await browser.page(path)).forms[path], "way": "happened", "why": "seen"}
    for body, text in ((b"\xff\xfe", "It is no text"), (b"x" * 1001, "the response was not kept")):
        preview = await browser.upload(path, multipart(fields, b"HTTP/1.1 200 OK\r\n\r\n" + body))
        assert text in preview.text
        assert "xxxx" not in preview.text
    keeping(port, body_bytes_max=100_000)
    body = "<script>alert(1)</script>x" + "é" * 5000
    page = await browser.submit(path, {"way": "happened", "why": "seen", "pasted": f"HTTP/1.1 200 OK\n\n{body}"})
    for found in (page, await browser.post(path, page.forms[path])):
        assert body[:2061] in found.text
        assert body[:2062] not in found.text
        assert "Only the beginning is shown." in found.text
        assert "script" not in [tag for tag, about in found.elements if "src" not in about]


async def test_what_is_redacted_is_not_shown(port: Port) -> None:
    """The preview shows what repeats get, and not what was pasted."""
    _, browser, path = await port.opened("olga")
    keeping(port, redaction=Redaction((parse_pointer("/card/number"),)), reads_bodies=True)
    pasted = 'HTTP/1.1 200 OK\nContent-Type: application/json\n\n{"card": {"number": "4242"}, "id": 7}'
    page = await browser.submit(path, {"way": "happened", "why": "seen", "pasted": pasted})
    assert '"id"' in page.text
    assert "4242" not in page.text
    assert "4242" not in (await browser.post(path, page.forms[path])).text


async def test_somebody_was_faster(port: Port) -> None:
    """A form is of the record that it showed: the second of two gets 409 and what is now, and changes nothing."""
    record, second, path = await port.opened("olga")
    operation_id = record.identity.operation_id
    form = {**(await second.page(path)).forms[path], "way": "happened", "why": "mine", "pasted": RESPONSE}
    forced = {**FORCED, "why": "first", "typed": str(operation_id)[:8]}
    assert (await (await port.signed_in("ada")).submit(path, forced)).status == 200
    after = port.desk.record(operation_id)
    late = await second.post(path, {**form, "confirmed": "yes"})
    assert (late.status, "nothing was changed" in late.text) == (409, True)
    assert port.desk.record(operation_id) == after


async def test_never_happened_has_its_time(port: Port) -> None:
    """Before a late request cannot arrive any more it is refused; afterwards preview and confirmation release it."""
    record, browser, path = await port.opened("olga")
    operation_id = record.identity.operation_id
    assert "disabled" in str((await browser.page(path)).elements)
    port.desk.memory.clock.advance(LEASE_SECONDS + SETTLE_SECONDS + 1)
    page = await browser.submit(path, {"way": "never_happened", "why": "seen"})
    fields = page.forms[path]
    assert (await browser.post(path, fields)).status == 200
    assert port.desk.record(operation_id).state is State.RELEASED
    erase = f"/ui/operations/{operation_id}/erase"
    admin = await port.signed_in("ada")
    assert (await admin.submit(erase, {"why": "asked to", "typed": "no"})).status == 400
    assert (await admin.submit(erase, {"why": "asked to", "typed": str(operation_id)[:8]})).status == 200
    assert port.desk.record(operation_id) is None


MANY = "/ui/dead-letters/{}?route=charge&reason=unauthorized"


async def preview_of_many(browser: Browser, verb: str, number: int) -> dict[str, str]:
    """The form that confirms, on a page that says so many match."""
    page = await browser.page(MANY.format(verb))
    assert f"{number} dead letters match" in page.words
    return {**page.forms[f"/ui/dead-letters/{verb}"], "rate": "1000", "why": "token rotated", "typed": str(number)}


async def test_many_dead_letters(port: Port) -> None:
    """Counted by a filter, the first ten shown, confirmed by their number; each is audited under the name."""
    dead = [await port.desk.kept(State.DEAD_LETTER) for _ in range(12)]
    other = await port.desk.kept(State.DEAD_LETTER, reason="unreadable")
    browser, path = await port.signed_in("olga"), "/ui/dead-letters/requeue"
    assert path in (await browser.page("/ui/dead-letters")).forms
    page = await browser.page(MANY.format("requeue"))
    assert len([link for link in page.links if link.startswith("/ui/operations/")]) == 10
    form = await preview_of_many(browser, "requeue", 12)
    for wrong in ({"typed": "11"}, {"why": "x"}, {"rate": "0"}, {"rate": "fast"}, {"reason": "bored"}):
        refused = await browser.post(path, {**form, **wrong})
        assert (refused.status, "Nothing was changed" in refused.text) == (400, True), wrong
    assert {port.desk.record(each.identity.operation_id).state for each in dead} == {State.DEAD_LETTER}
    assert "12 requeued, 0 skipped, 0 left." in (await browser.post(path, form)).text
    assert {port.desk.record(each.identity.operation_id).state for each in dead} == {State.ACCEPTED}
    assert port.desk.record(other.identity.operation_id).state is State.DEAD_LETTER
    for each in dead:
        (entry,) = await port.desk.operations.audits(each.identity.operation_id)
        assert (entry.event, entry.who, entry.why) == ("requeue", "olga", "token rotated")
    assert "12 requeued, 0 skipped, 0 left: token rotated" in (await browser.page("/ui/audit")).text
    assert "No dead letter matches." in (await browser.page(MANY.format("requeue"))).text


async def test_another_number_by_now(port: Port) -> None:
    """A form whose number does not match any more changes nothing, and shows the one that does."""
    dead = [await port.desk.kept(State.DEAD_LETTER) for _ in range(2)]
    browser, path = await port.signed_in("olga"), "/ui/dead-letters/withdraw"
    form = await preview_of_many(browser, "withdraw", 2)
    dead.append(await port.desk.kept(State.DEAD_LETTER))
    page = await browser.post(path, form)
    assert page.status == 409
    assert "3 dead letters match" in page.words
    assert "others match by now" in page.text
    assert {port.desk.record(each.identity.operation_id).state for each in dead} == {State.DEAD_LETTER}
    again = {**page.forms[path], "rate": "1000", "why": "token rotated", "typed": "3"}
    assert (await browser.post(path, again)).status == 200
    # The same form sent again.
    assert (await browser.post(path, again)).status == 409


async def test_many_is_no_way_around_a_role(port: Port, vera: Browser) -> None:
    """A viewer is offered nothing; all of them at once is nothing that a form can ask for. What stands in the address
    of a form is text, and a filter that is none is said to be so."""
    record, path = await port.desk.kept(State.DEAD_LETTER), "/ui/dead-letters/requeue"
    assert "Many at once" not in (await vera.page("/ui/dead-letters")).text
    operator = await port.signed_in("olga")
    chosen = (await operator.page(f"{path}?route=charge")).forms[path]
    every = {**chosen, "route": "", "why": "forged", "rate": "1", "matching": "1", "typed": "1"}
    assert (await operator.post(path, every)).status == 400
    assert "Confirm" not in (await operator.page(path)).text
    hostile = await operator.get(f"{path}?route={quote_plus(HOSTILE)}")
    assert b"<script>alert" not in hostile.body
    assert "No dead letter matches." in hostile.text
    for wrong in ("older_than=soon", "reason=bored", "route=&reason=&older_than="):
        refused = await operator.get(f"{path}?{wrong}")
        assert (refused.status, "Nothing was changed" in refused.text) == (400, True)
    assert port.desk.record(record.identity.operation_id) == record


async def test_finding(port: Port, vera: Browser) -> None:
    """By the request, in the body of a form: the key is in no address."""
    record = await port.desk.in_state(State.COMPLETED, key="k-1")
    form = {"route": "charge", "headers": "Idempotency-Key: k-1\r\nX-Tenant: t1"}
    found = await vera.submit("/ui/find", form)
    assert (found.status, found.header("Location")) == (303, f"/ui/operations/{record.identity.operation_id}")
    none = await vera.submit("/ui/find", {**form, "headers": "Idempotency-Key: k-2\r\nX-Tenant: t1"})
    assert (none.status, "A request with it would run." in none.text) == (404, True)
    assert (await vera.submit("/ui/find", {**form, "headers": "no header"})).status == 400


async def test_a_link_survives_the_sign_in(port: Port) -> None:
    """Whoever opens a link before they signed in comes to what it leads to, and nowhere else."""
    record = await port.desk.in_state(State.IN_DOUBT)
    place = f"/ui/operations/{record.identity.operation_id}?a=b"
    browser = port.browser()
    asked = await browser.get(place)
    assert asked.status == 303
    page = await browser.page(asked.header("Location") or "")
    (form,) = page.forms.values()
    assert form["next"] == place
    for target in (place, "https://evil.example/", "//evil.example/ui/", ""):
        reached = place if target == place else "/ui/"
        response = await browser.post("/ui/sign-in", {"token": TOKENS["vera"], "next": target})
        assert (response.status, response.header("Location")) == (303, reached)


async def test_hostile_text_is_text(port: Port) -> None:
    """What callers, services and operators wrote is text on every page."""
    record, browser, path = await port.opened("olga")
    operation_id = record.identity.operation_id
    hostile = RESPONSE.replace("text/html", HOSTILE)
    page = await browser.submit(path, {"way": "happened", "why": HOSTILE, "pasted": hostile})
    assert HOSTILE in page.text
    assert (await browser.post(path, page.forms[path])).status == 200
    places = ("/ui/", "/ui/audit", f"/ui/operations/{operation_id}", "/ui/configuration", "/ui/operations?state=all")
    for place in places:
        text = (await browser.get(place)).body.decode()
        assert "<script>alert" not in text
    assert HOSTILE in (await browser.page("/ui/audit")).text


# -- when the store is away -------------------------------------------------------------------------------------------


async def test_the_store_is_away(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is ever said to be empty that could not be asked; what needs no store is shown. Whether a change was made
    whose acknowledgement is missing is not known, and given again it is found out."""
    _, browser, path = await port.opened("ada", State.COMPLETED, "purge")
    form = {**(await browser.page(path)).forms[path], "why": "asked to"}
    with monkeypatch.context() as patch:
        away(port.desk, patch, Indefinite("the connection was lost"), "apply")
        response = await browser.post(path, form)
    assert (response.status, "It is not known whether this was done" in response.text) == (503, True)
    assert (await browser.post(path, form)).status == 200

    away(port.desk, monkeypatch, NotApplied("connection refused"), *READS)
    monkeypatch.setattr(port.desk.store.cold, "activity", port.desk.store.read)
    page = await browser.page("/ui/")
    assert "The durable store could not be asked: connection refused" in page.text
    assert "The numbers of this process alone: the durable store could not be asked (connection refused)" in page.text
    assert "No operation is in doubt" not in page.text
    for place in ("operations", "dead-letters", "sinks", "pauses", "memory", "audit", f"operations/{UUID(int=7)}"):
        response = await browser.get(f"/ui/{place}")
        assert (response.status, "It could not be asked" in response.text) == (503, True), place
        assert not re.search(r"No operation is|There are no|Nobody changed|Nothing is", response.text)
    for place in ("journal", "routes", "configuration", "find"):
        await browser.page(f"/ui/{place}")


_ID = "00000000-0000-8000-8000-000000000000"
# By least role: the methods, and the paths that know them all.
PATHS = {
    "viewer": {
        "GET": "/operations /operations/ID /dead-letters /paused /sinks /events /memory /journal /observed /activity "
        "/ui /ui/ /ui/operations /ui/operations/ID /ui/dead-letters /ui/sinks /ui/sinks/s /ui/pauses /ui/journal "
        "/ui/memory /ui/audit /ui/routes /ui/observe /ui/configuration",
        "POST": "/find /ui/sign-out",
        "GET POST": "/ui/find /ui/explain",
    },
    "operator": {
        "GET": "/ui/operations/ID/response /ui/journal/ID/1/response",
        "POST": "/operations/ID/resolve /operations/ID/requeue /operations/ID/withdraw /requeue /withdraw /pause "
        "/resume /sinks/s/suspend /sinks/s/resume /events/e/redeliver",
        "GET POST": "/ui/operations/ID/resolve /ui/operations/ID/requeue /ui/operations/ID/withdraw "
        "/ui/dead-letters/requeue /ui/dead-letters/withdraw /ui/sinks/s/suspend /ui/sinks/s/resume "
        "/ui/events/e/redeliver /ui/pauses/charge/pause /ui/pauses/charge/resume /ui/journal/ID/1/acknowledge",
    },
    "admin": {
        "POST": "/operations/ID/purge /operations/ID/erase /memory/accept-loss /config/reload",
        "GET POST": "/ui/operations/ID/purge /ui/operations/ID/erase /ui/memory/accept-loss /ui/configuration/reload",
    },
}
EACH_PATH = [
    (least, method, path)
    for least, by_methods in PATHS.items()
    for methods, paths in by_methods.items()
    for path in paths.split()
    for method in methods.split()
]


@pytest.mark.parametrize(("least", "method", "path"), EACH_PATH)
async def test_a_path_and_its_role(port: Port, least: str, method: str, path: str) -> None:
    """It is there for its role and for those above, and forbidden to those below."""
    ranks = [role for _, _, role in PEOPLE]
    for name, _, role in PEOPLE:
        response = await port.program(name)(method, path.replace("ID", _ID))
        is_refused = ranks.index(role) < ranks.index(least)
        assert (response.status == 403) is is_refused, (name, response.status)
        assert response.status != 405, name
        if response.status == 404 and "json" in (response.header("Content-Type") or ""):
            assert response.json()["code"] != "no-such-path"
        assert b"There is nothing here." not in response.body, name


async def test_the_form_of_an_operation(port: Port) -> None:
    """The page of an operation leads to what may be done to it, and to nothing else."""
    browser, kept = await port.signed_in("ada"), (State.ACCEPTED, State.DEAD_LETTER)
    for state, verbs in {
        State.DEAD_LETTER: {"requeue", "withdraw"},
        State.ACCEPTED: {"withdraw"},
        State.COMPLETED: {"purge", "response"},
        State.TOMBSTONE: {"erase"},
        State.IN_DOUBT: {"resolve"},
        State.CLAIMED: set(),
    }.items():
        record = await (port.desk.kept(state) if state in kept else port.desk.in_state(state))
        path = f"/ui/operations/{record.identity.operation_id}"
        page = await browser.page(path)
        assert {link.removeprefix(f"{path}/") for link in page.links if link.startswith(f"{path}/")} == verbs
