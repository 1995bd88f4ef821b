"""The console in a browser, beside a running gateway: a doubt is found and ended, on every page axe finds nothing.

`make test-browser` brings the browser. A violation of the content security policy is a console message, and none is
allowed. The screenshots are those of docs/console.md.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, async_playwright

from tests.admin.shell import doubt
from tests.admin.test_commands import ACCEPTING, ASYNC
from tests.browser.install import environment, executable
from tests.support.eventually import eventually
from tests.support.house import House, house, sqlite_store, status_of
from tests.support.postgres import PostgresServer
from tests.support.upstream import Answer, Ending

PLACE = Path(os.environ["BROWSER"])
SHOTS = Path(__file__).parents[2] / "docs/console"
TOKEN = "0123456789abcdef-operator"
VIEWER = "0123456789abcdef-viewer"
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
PAGES = [
    "operations", "find", "dead-letters", "sinks", "pauses", "journal", "memory", "audit", "routes", "observe",
    "explain", "configuration",
]  # fmt: skip
RESPONSE = 'HTTP/1.1 201 Created\nContent-Type: application/json\n\n{"id":1}'


@asynccontextmanager
async def opened(running: House, *, noted: str = "", **options: object) -> AsyncIterator[Page]:
    """A page of the console, signed out. Afterwards the browser's console has said nothing but what it notes of its own
    accord: each response with the status `noted`."""
    said: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=executable(PLACE), env=environment(PLACE), args=["--no-sandbox"]
        )
        page = await browser.new_page(base_url=f"http://127.0.0.1:{running.gateway.admin_address[1]}", **options)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        yield page
        await browser.close()
    assert [text for text in said if not noted or noted not in text] == []


async def sign_in(page: Page, token: str = TOKEN) -> None:
    await page.goto("/ui/")
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url("**/ui/")


async def check(page: Page) -> None:
    """Axe finds nothing, and nothing but tables is wider than the window."""
    found = await Axe().run(page)
    assert found.violations_count == 0, (page.url, found.generate_report())
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), page.url


def settings() -> dict[str, object]:
    people = (("olga", TOKEN, "operator"), ("vera", VIEWER, "viewer"))
    tokens = [{"name": name, "token": token, "role": role} for name, token, role in people]
    return {"listen": "127.0.0.1:0", "tokens": tokens}


async def tab_to(page: Page, name: str) -> None:
    """Press Tab until what has this name is in focus, whose ring is seen."""
    for _ in range(80):
        await page.keyboard.press("Tab")
        found = "document.activeElement.labels?.[0]?.textContent || document.activeElement.textContent"
        if str(await page.evaluate(found)).strip().startswith(name):
            assert await page.evaluate("document.activeElement.matches(':focus-visible')")
            assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            return
    raise AssertionError(f"no way to {name!r} by Tab on {page.url}")


async def explain(page: Page) -> None:
    """Have a request explained."""
    await page.goto("/ui/explain")
    await page.get_by_label("URL").fill("http://gateway.test/charges")
    await page.get_by_label("Headers").fill("X-Tenant: t1\nIdempotency-Key: k1")
    await page.get_by_label("Body").fill('{"amount":1000,"currency":"eur"}')
    await page.get_by_role("button", name="Explain it").click()


async def preview(page: Page, response: str = RESPONSE, why: str = "seen in the ledger") -> None:
    """On the first page of a resolution, say that it happened."""
    await page.locator("#pasted").fill(response)
    await page.locator("#why-happened").fill(why)
    await page.get_by_role("button", name="Preview").first.click()


async def test_a_doubt_is_ended(tmp_path: Path) -> None:
    """Found, pasted, previewed, confirmed: the retry is recovered, one execution, audited under the name."""
    async with house(sqlite_store(tmp_path), tmp_path, admin=settings()) as running:
        running.upstream.on("/charges", Answer(201))
        assert [status_of(await running.send("k0")) for _ in range(2)] == [(201, "stored"), (201, "replayed")]
        operation_id = await doubt(running)
        before = len(running.upstream.requests)
        async with opened(running, viewport={"width": 1000, "height": 700}) as page:
            await page.goto("/ui/")
            await page.screenshot(path=SHOTS / "sign-in.png")
            await check(page)
            await sign_in(page)
            await check(page)
            await page.locator("tbody th a").click()
            await page.screenshot(path=SHOTS / "operation.png")
            await check(page)
            await page.get_by_role("link", name="Resolve…").click()
            await page.screenshot(path=SHOTS / "resolve.png", full_page=True)
            await check(page)
            await preview(page)
            await page.screenshot(path=SHOTS / "preview.png")
            await check(page)
            await page.get_by_role("button", name="Resolve it").click()
            assert "it completed with status 201" in await page.inner_text("main")
            assert '{"id":1}' in await page.inner_text("main")
            await page.screenshot(path=SHOTS / "resolved.png")
            await check(page)
            repeat = await running.send()
            assert (*status_of(repeat), repeat.body) == (201, "recovered", b'{"id":1}')
            assert len(running.upstream.requests) == before
            await page.goto(f"/ui/operations/{operation_id}")
            await shoot(page, "history")
            await explain(page)
            await check(page)
            await page.screenshot(path=SHOTS / "explain.png", full_page=True)
            assert "differs in: " in await page.inner_text("main")
            await page.goto("/ui/audit")
            text = await page.inner_text("main")
            assert "olga" in text
            assert operation_id[:13] in text


async def shoot(page: Page, name: str) -> None:
    """The whole page, at its own height: what stays at the lower edge of a window is at its end."""
    size = page.viewport_size
    assert size is not None
    height = await page.evaluate("document.documentElement.scrollHeight")
    await page.set_viewport_size({"width": size["width"], "height": max(size["height"], height)})
    await page.screenshot(path=SHOTS / f"{name}.png")
    await page.set_viewport_size(size)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390], ids=["wide", "narrow"])
async def test_every_page(tmp_path: Path, width: int, scheme: str) -> None:
    """With something on it: axe finds nothing, and nothing is wider than the window."""
    ending = ("" if width > 1000 else "-narrow") + ("" if scheme == "light" else "-dark")
    async with house(sqlite_store(tmp_path), tmp_path, admin=settings()) as running:
        running.upstream.on("/charges", Answer(201))
        assert status_of(await running.send("k0")) == (201, "stored")
        operation_id = [await doubt(running, f"k{number}") for number in (1, 2, 3)][-1]
        look = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
        async with opened(running, **look) as page:
            await sign_in(page)
            for name in ("", *PAGES):
                await page.goto(f"/ui/{name}")
                await check(page)
                # The configuration has paths of this machine; the overview and an explained request are shot elsewhere.
                if name == "operations" or (not ending and name not in ("", "configuration", "explain")):
                    await shoot(page, name + ending)
            about = f"operations/{operation_id}"
            for path in ("operations?state=all&sort=-subject&status=2xx", about, f"{about}/resolve"):
                await page.goto(f"/ui/{path}")
                await check(page)
            await preview(page)
            await check(page)
            await page.goto("/ui/find")
            await page.get_by_label("Key, or its digest").fill("k3")
            await page.get_by_role("button", name="Find its callers").click()
            await page.get_by_text("callers were asked after").wait_for()
            await check(page)


async def test_times_and_copies(tmp_path: Path) -> None:
    """Times are as they were chosen, also on the next page; what is copied is whole."""
    async with house(sqlite_store(tmp_path), tmp_path, admin=settings()) as running:
        operation_id = await doubt(running)
        options = {"permissions": ["clipboard-read", "clipboard-write"], "timezone_id": "Asia/Kolkata"}
        async with opened(running, **options) as page:
            await sign_in(page)
            await page.goto("/ui/operations")
            time = page.locator("tbody time")
            assert (await time.inner_text()).endswith("Z")
            await page.get_by_label("Times are").select_option("local")
            assert "GMT+5:30" in await time.inner_text()
            await page.get_by_label("Times are").select_option("relative")
            await page.goto(f"/ui/operations/{operation_id}")
            assert (await page.locator(".timeline time").first.inner_text()).endswith(" ago")
            copied = {
                "Copy the id": operation_id,
                "Copy the link to this page": f"{page.url}",
                "Copy the command that inspects it": f"idempotency-gateway inspect {operation_id}",
                "Copy a repeat as a curl command, without query, body and caller": (
                    "curl -i -X POST https://gateway.test/charges -H 'idempotency-key: THE SAME KEY'"
                ),
            }
            for name, text in copied.items():
                await page.get_by_role("button", name=name).click()
                await page.get_by_text("Copied").first.wait_for()
                assert await page.evaluate("navigator.clipboard.readText()") == text
                await page.get_by_text("Copied").wait_for(state="detached")


async def test_small_dark_and_without_script(tmp_path: Path) -> None:
    """Every page, empty and 320 px wide, in the dark and in forced colors, with the script and without it."""
    async with house(sqlite_store(tmp_path), tmp_path, admin=settings()) as running:
        small = {"viewport": {"width": 320, "height": 640}, "color_scheme": "dark"}
        async with opened(running, **small) as page:
            await sign_in(page)
            for name in ("", *PAGES):
                await page.goto(f"/ui/{name}")
                for colors in ("active", "none"):
                    await page.emulate_media(forced_colors=colors)
                    await check(page)
            await page.keyboard.press("g")
            await page.keyboard.press("a")
            await page.wait_for_url("**/ui/audit")
        operation_id = await doubt(running)
        async with opened(running, java_script_enabled=False, viewport={"width": 390, "height": 800}) as page:
            await sign_in(page)
            for entry in ("Deliveries", "Sinks", "Routes", "System", "Operations"):
                await page.get_by_role("link", name=entry, exact=True).first.click()
                assert await page.locator("nav [aria-current]").first.inner_text() == entry
            await page.get_by_label("Method or path").fill("CHARGES")
            await page.get_by_role("button", name="Filter").click()
            await page.get_by_role("link", name="Caller").first.click()
            await page.wait_for_url("**path=CHARGES&**sort=caller")
            await page.get_by_role("link", name="POST /charges").click()
            assert operation_id in await page.inner_text("h1")
            assert not await page.locator("button.copy").first.is_visible()
            await page.get_by_role("link", name="Resolve…").click()
            await preview(page)
            await page.get_by_role("button", name="Back to 1 of 3").click()
            assert await page.locator("#pasted").input_value() == RESPONSE
            await page.get_by_role("button", name="Preview").first.click()
            await page.get_by_role("button", name="Resolve it").click()
        assert status_of(await running.send()) == (201, "recovered")


async def test_many_dead_letters(tmp_path: Path) -> None:
    """Chosen, counted, confirmed by their number: by keyboard and without the script."""
    async with house(sqlite_store(tmp_path), tmp_path, admin=settings(), **ACCEPTING) as running:
        running.upstream.on("/charges", Answer(401, body=HOSTILE.encode()))
        for number in range(3):
            assert status_of(await running.send(f"k{number}", headers=ASYNC)) == (202, "accepted")
        async with opened(running, java_script_enabled=False, viewport={"width": 1000, "height": 700}) as page:
            await sign_in(page)

            async def are_dead() -> bool:
                await running.gateway.parts.delivery.run_once()
                await page.goto("/ui/dead-letters")
                return await page.locator("tbody tr").count() == 3

            await eventually(are_dead, 20.0, "three are dead letters")
            await page.locator("#many-reason").focus()
            for keys in ("unauth", "Tab", "Tab", "Enter"):
                await (page.keyboard.type if keys == "unauth" else page.keyboard.press)(keys)
            await page.wait_for_url("**/ui/dead-letters/requeue?*")
            assert "3 dead letters match" in await page.inner_text("main")
            await page.screenshot(path=SHOTS / "many.png", full_page=True)
            await page.locator("#why").focus()
            await page.keyboard.type("token rotated")
            await page.keyboard.press("Tab")
            await page.keyboard.type("3")
            await page.keyboard.press("Enter")
            await page.get_by_text("3 requeued, 0 skipped, 0 left.").wait_for()


async def test_signing_in_by_a_proxy(tmp_path: Path) -> None:
    """One button, by keyboard and without the script; signing out says what it does not end."""
    proxy = {"from": ["127.0.0.1/32"], "name": "X-Forwarded-User", "roles": {"operator": ["alice"]}}
    admin = {**settings(), "sign_in": {"secret": TOKEN, "proxy": proxy}}
    async with house(sqlite_store(tmp_path), tmp_path, admin=admin) as running:
        look = {"java_script_enabled": False, "viewport": {"width": 1000, "height": 700}}
        async with opened(running, extra_http_headers={"X-Forwarded-User": "alice"}, **look) as page:
            await page.goto("/ui/audit")
            await page.screenshot(path=SHOTS / "sign-in-proxy.png")
            await page.get_by_role("button", name="Go on as alice").focus()
            await page.keyboard.press("Enter")
            await page.wait_for_url("**/ui/audit")
            assert "signed in as operator" in await page.inner_text("main")
            await page.get_by_role("button", name="Sign out").click()
            assert "sign out at the proxy" in await page.inner_text("main")
        for name, text in (("alice", "Go on as alice"), ("eve", "eve has no role here")):
            small = {"viewport": {"width": 320, "height": 640}}
            async with opened(running, extra_http_headers={"X-Forwarded-User": name}, **small) as page:
                await page.goto("/ui/")
                assert text in await page.inner_text("main")
                await check(page)


async def test_by_keyboard_alone(tmp_path: Path) -> None:
    """From the sign-in to the confirmation without a pointer; what is in focus can be seen."""
    async with house(sqlite_store(tmp_path), tmp_path, admin=settings()) as running:
        operation_id = await doubt(running)
        async with opened(running) as page:
            await page.goto("/ui/")
            await tab_to(page, "Token")
            await page.keyboard.type(TOKEN)
            await page.keyboard.press("Enter")
            await page.wait_for_url("**/ui/")
            await page.keyboard.press("Tab")
            await page.keyboard.press("Enter")  # Skip to the content.
            await page.keyboard.press("j")
            await page.keyboard.press("Enter")
            await page.wait_for_url(f"**/{operation_id}")
            await tab_to(page, "Resolve…")
            await page.keyboard.press("Enter")
            await page.wait_for_url("**/resolve")
            await tab_to(page, "The service's response")
            await page.keyboard.insert_text(RESPONSE)
            await tab_to(page, "Why")
            await page.keyboard.type("seen in the ledger")
            await tab_to(page, "Preview")
            await page.keyboard.press("Enter")
            await page.get_by_text("Nothing is changed yet").wait_for()
            await tab_to(page, "Resolve it")
            await page.keyboard.press("Enter")
            await page.get_by_text("it completed with status 201").wait_for()
        assert status_of(await running.send()) == (201, "recovered")


async def test_a_live_page(tmp_path: Path) -> None:
    """It is refreshed although a row has the focus, which stays there; where it cannot be, its age is shown."""
    async with house(sqlite_store(tmp_path), tmp_path, admin=settings()) as running:
        operation_id = await doubt(running)
        async with opened(running) as page:
            await page.goto(f"/ui/operations/{operation_id}?from=chat")
            await page.get_by_label("Token").fill(TOKEN)
            await page.get_by_role("button", name="Sign in").click()
            await page.wait_for_url("**?from=chat")
            await page.goto("/ui/operations")
            await page.locator("tbody th a").focus()
            running.upstream.on("/charges", Answer(bytes_max=0, ending=Ending.RESET))
            assert status_of(await running.send("another")) == (502, "in-doubt")
            await page.get_by_text("1 new").wait_for()
            assert (await page.title()).startswith("(1 new) 2 in doubt")
            assert await page.locator("tbody tr").count() == 1
            assert operation_id in str(await page.evaluate("document.activeElement.href"))
            await check(page)
            await page.get_by_role("button", name="Show").click()
            await page.locator("tbody tr").nth(1).wait_for()
            assert await page.locator("tbody tr").nth(1).get_attribute("class") == "changed"
            assert await page.locator("tbody tr:nth-child(2) th a").evaluate("each => each === document.activeElement")
            assert await page.get_by_text("1 new").count() == 0
            await page.locator("#older").focus()
            await page.get_by_text("Not refreshed while you write; what is shown is").wait_for()
            await page.get_by_role("button", name="Pause refreshing").click()
            await page.get_by_text("Refreshing is paused; what is shown is").wait_for()


async def test_hostile_text_is_text(tmp_path: Path) -> None:
    """What a service and an operator wrote is no markup on any page, and a viewer's pages have nothing to change."""
    async with house(sqlite_store(tmp_path), tmp_path, admin=settings()) as running:
        path = f"/ui/operations/{await doubt(running)}"
        async with opened(running) as page:
            await sign_in(page, VIEWER)
            await page.goto(path)
            assert await page.get_by_role("link", name="Resolve…").count() == 0
            assert "not with your role" in await page.inner_text("main")
            await check(page)
        async with opened(running) as page:
            await sign_in(page)
            await page.goto(f"{path}/resolve")
            await preview(page, RESPONSE.replace("application/json", HOSTILE), HOSTILE)
            assert HOSTILE in await page.inner_text("main")
            await check(page)
            await page.get_by_role("button", name="Resolve it").click()
            for place in ("/ui/audit", path):
                await page.goto(place)
                assert HOSTILE in await page.inner_text("main")
                assert await page.locator("main img, main script").count() == 0
                await check(page)


async def test_the_store_is_away(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """What could not be asked is said to be so; an open page says how old it is, and none that nothing is there."""
    async with house({"durable": own_postgres.url}, tmp_path, admin=settings()) as running:
        await doubt(running)
        async with opened(running, noted="503", viewport={"width": 1000, "height": 700}) as page:
            await sign_in(page)
            await page.goto("/ui/operations")
            own_postgres.crash()
            await page.get_by_text("Could not be asked; what is shown is").wait_for(timeout=30_000)
            assert "in doubt" in await page.inner_text("tbody")
            await page.goto("/ui/")
            assert "The durable store could not be asked" in await page.inner_text("main")
            await check(page)
            await page.screenshot(path=SHOTS / "away.png")
            for name in PAGES:
                await page.goto(f"/ui/{name}")
                text = await page.inner_text("main")
                lies = ("No operation is", "There are no", "Nobody", "Nothing is paused")
                assert not any(lie in text for lie in lies)
                await check(page)
