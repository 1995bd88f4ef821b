"""The console in a browser, beside a running gateway: a doubt is found and ended, on every page axe finds nothing.

`make test-browser` brings the browser. A violation of the content security policy is a console message, and none is
allowed. The screenshots are those of docs/console.md.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, async_playwright

from tests.admin.shell import doubt
from tests.browser.install import environment, executable
from tests.support.house import House, house, status_of

PLACE = Path(os.environ["BROWSER"])
SHOTS = Path(__file__).parents[2] / "docs/console"
TOKEN = "0123456789abcdef-operator"
PAGES = [
    "operations",
    "find",
    "dead-letters",
    "sinks",
    "pauses",
    "journal",
    "memory",
    "audit",
    "routes",
    "configuration",
]
RESPONSE = 'HTTP/1.1 201 Created\nContent-Type: application/json\n\n{"id":1}'


@asynccontextmanager
async def opened(running: House, said: list[str], **options: object) -> AsyncIterator[Page]:
    """A page of the console, signed out. `said` gets what the browser's console says."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=executable(PLACE), env=environment(PLACE), args=["--no-sandbox"]
        )
        page = await browser.new_page(base_url=f"http://127.0.0.1:{running.gateway.admin_address[1]}", **options)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        yield page
        await browser.close()


async def sign_in(page: Page) -> None:
    await page.goto("/ui/")
    await page.get_by_label("Token").fill(TOKEN)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url("**/ui/")


async def check(page: Page) -> None:
    """Axe finds nothing, and nothing but tables is wider than the window."""
    found = await Axe().run(page)
    assert found.violations_count == 0, (page.url, found.generate_report())
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), page.url


def settings() -> dict[str, object]:
    return {"listen": "127.0.0.1:0", "tokens": [{"name": "olga", "token": TOKEN, "role": "operator"}]}


async def test_a_doubt_is_ended(tmp_path: Path) -> None:
    """Found, pasted, previewed, confirmed: the retry is recovered, one execution, audited under the name."""
    said: list[str] = []
    store = {"durable": f"sqlite://{tmp_path}/store/operations.db"}
    async with house(store, tmp_path, admin=settings()) as running:
        operation_id = await doubt(running)
        async with opened(running, said, viewport={"width": 1000, "height": 700}) as page:
            await page.goto("/ui/")
            await page.screenshot(path=SHOTS / "sign-in.png")
            await check(page)
            await sign_in(page)
            await page.screenshot(path=SHOTS / "overview.png")
            await check(page)
            await page.locator("tbody a").click()
            await page.screenshot(path=SHOTS / "operation.png")
            await check(page)
            await page.get_by_role("link", name="Resolve…").click()
            await page.screenshot(path=SHOTS / "resolve.png", full_page=True)
            await check(page)
            await page.locator("#pasted").fill(RESPONSE)
            await page.locator("#why-happened").fill("seen in the ledger")
            await page.get_by_role("button", name="Preview").first.click()
            await page.screenshot(path=SHOTS / "preview.png")
            await check(page)
            await page.get_by_role("button", name="Resolve it").click()
            assert "it completed with status 201" in await page.inner_text("main")
            await check(page)
            repeat = await running.send()
            assert (*status_of(repeat), repeat.body) == (201, "recovered", b'{"id":1}')
            assert len(running.upstream.requests) == 1
            for name in PAGES:
                await page.goto(f"/ui/{name}")
                await check(page)
                if name != "configuration":  # It has paths of this machine.
                    await page.screenshot(path=SHOTS / f"{name}.png")
            await page.goto("/ui/audit")
            text = await page.inner_text("main")
            assert "olga" in text
            assert operation_id[:13] in text
    assert said == []


async def test_small_dark_and_without_script(tmp_path: Path) -> None:
    """Every page, empty and 320 px wide, in the dark and in forced colors, with the script and without it."""
    said: list[str] = []
    store = {"durable": f"sqlite://{tmp_path}/store/operations.db"}
    async with house(store, tmp_path, admin=settings()) as running:
        small = {"viewport": {"width": 320, "height": 640}, "color_scheme": "dark"}
        async with opened(running, said, **small) as page:
            await sign_in(page)
            for name in ("", *PAGES):
                await page.goto(f"/ui/{name}")
                await check(page)
            await page.emulate_media(forced_colors="active")
            for name in ("", *PAGES):
                await page.goto(f"/ui/{name}")
                await check(page)
            await page.keyboard.press("g")
            await page.keyboard.press("a")
            await page.wait_for_url("**/ui/audit")
        async with opened(running, said, java_script_enabled=False) as page:
            await sign_in(page)
            await page.get_by_role("link", name="Operations", exact=True).click()
            assert "No operation is in_doubt." in await page.inner_text("main")
    assert said == []
