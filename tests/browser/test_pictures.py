"""The pictures of the overview in a browser: light and dark, wide and narrow, with the script and without."""

from __future__ import annotations

import math
import time
from pathlib import Path
from uuid import uuid4

from gateway.upkeep.activity import BUCKET_US, Numbers
from tests.admin.shell import doubt
from tests.browser.test_console import SHOTS, check, opened, settings, sign_in
from tests.support.house import House, house, sqlite_store

MINUTES = 50


def numbers(at: int) -> Numbers:
    """What a gateway of some traffic counts, of which the service is slow for a while."""
    is_slow = 58 <= at < 70
    many = 60 + 25 * math.sin(at / 9) + 7 * (at * 7 % 5)
    verdicts = {"stored": many, "replayed": many / 5, "accepted": 6 + at % 4, "key-reused": at % 3}
    verdicts |= {"in-doubt": 4 + at % 3, "upstream-unreachable": 12} if is_slow else {}
    doubts = max(0, min(at - 58, 12) - max(0, at - 74)) * 4
    return {
        "verdict": {name: float(round(number)) for name, number in verdicts.items()},
        "route": {"charges": float(round(many)), "refunds": float(round(many / 4)), "payouts": 9.0 + at % 5},
        "gateway": {"0.001": many * 0.6, "0.0025": many * 0.39, "0.025": many * 0.01},
        "service": {"1.0" if is_slow else "0.1": many * 0.9, "10.0" if is_slow else "0.25": many * 0.1},
        "opened": {"": 4.0 if is_slow else 0.0},
        "open": {"": float(doubts)},
        "accepted": {"": 6.0 + at % 4},
        "delivery": {"delivered": 6.0 + (at + 1) % 4},
        "waiting": {"": 40.0 if is_slow else 3.0},
        "oldest_waiting": {"": 5.0 + 30.0 * max(0, at - 58) if is_slow else 4.0},
        "lag": {"billing": 2.0 + at % 2, "audit": 20.0 + at % 9},
        "mark": {"reload": 1.0} if at == 30 else {},
    }


def fill(running: House) -> None:
    """Let it remember the last minutes, with a stretch in which nobody counted."""
    writer, last = uuid4(), time.time_ns() // 1_000 // BUCKET_US
    for at in range(2 * MINUTES):
        if not 12 <= at < 20:
            running.gateway.activity._buckets[writer, (last - 2 * MINUTES + at) * BUCKET_US] = numbers(at)


async def test_pictures_are_seen(tmp_path: Path) -> None:
    """Axe finds nothing, nothing is wider than the window, no picture is empty, and the console says nothing."""
    async with house(sqlite_store(tmp_path), tmp_path, admin=settings()) as running:
        for number in range(4):
            await doubt(running, f"k{number}")
        fill(running)
        for width, scheme, ending in (
            (1440, "light", ""),
            (1440, "dark", "-dark"),
            (390, "light", "-narrow"),
            (390, "dark", "-narrow-dark"),
        ):
            view = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
            async with opened(running, **view) as page:
                await sign_in(page)
                for address in ("/ui/?window=week", "/ui/"):
                    await page.goto(address)
                    await check(page)
                await page.screenshot(path=SHOTS / f"overview{ending}.png")
                # As high as the page: what stays at the lower edge of a window would lie on the pictures.
                height = await page.evaluate("document.documentElement.scrollHeight")
                await page.set_viewport_size({"width": width, "height": height})
                if ending != "-narrow-dark":
                    await page.locator(".pictures").screenshot(path=SHOTS / f"pictures{ending}.png")
                boxes = await page.locator(".plot").evaluate_all(
                    "(found) => found.map((each) => [each.clientWidth, each.clientHeight])"
                )
                assert len(boxes) == 6
                assert min(min(box) for box in boxes) > 80


async def test_numbers_stay_open(tmp_path: Path) -> None:
    """Also when the page is refreshed; and without the script there are the same pictures."""
    async with house(sqlite_store(tmp_path), tmp_path, admin=settings()) as running:
        fill(running)
        async with opened(running) as page:
            await sign_in(page)
            await page.locator("#numbers-doubts summary").click()
            await page.evaluate("document.activeElement.blur()")
            before = await page.locator(".asked time").first.text_content()
            await page.wait_for_function(
                "(before) => document.querySelector('.asked time').textContent !== before", arg=before, timeout=30_000
            )
            assert await page.locator("#numbers-doubts").get_attribute("open") is not None
            assert await page.locator("details[open]").count() == 1
        async with opened(running, java_script_enabled=False) as page:
            await sign_in(page)
            assert await page.locator(".plot").count() == 6
            await page.get_by_role("link", name="Week").click()
            assert "last week" in str(await page.locator("#pictures").text_content())
