"""The note of what gateways saw of their durable store, on a real Redis."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import pytest

from gateway.store.base import StoreError
from gateway.store.memory.epoch import Seen, WitnessNote
from gateway.store.redis.store import LINKS_MAX, STOOD_FOR_US, TOKEN_MAX, RedisSeen
from tests.store.copies import client

NAME = "service shop, postgresql gateway"
KEY = f"idempotency-gateway:seen:{NAME}"
HIGH = 2**61 + 2**32 - 1
NOW_US = 2**50 + 2**32 - 1
ACKNOWLEDGED = WitnessNote(UUID(int=2**127 - 1), 2**45 + 7, NOW_US, TOKEN_MAX, b"0123456789abcdef")
NOTE = Seen("here", HIGH, ("first", "second"), is_compared=True, acknowledged=(ACKNOWLEDGED,))


@pytest.fixture
async def note(redis_url: str) -> RedisSeen:
    """One that was written."""
    note = RedisSeen(redis_url, NAME)
    await note.write(NOTE, "")
    return note


STEPS = {"far-lower": -(2**32), "lower": -1, "equal": 0, "higher": 1, "far-higher": 2**32}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
async def test_neither_token_nor_number_goes_back(note: RedisSeen, step: int) -> None:
    """However writes overtake one another: of one memory the highest token stays, compared exactly, and of a link the
    highest number, with what else is noted of it."""
    later = replace(ACKNOWLEDGED, number=ACKNOWLEDGED.number + step, at_us=NOW_US + step)
    other = replace(ACKNOWLEDGED, link=UUID(int=3), number=1)
    await note.write(Seen("here", HIGH + step, acknowledged=(other, later)), "")
    held = await note.read()
    assert held.token == max(HIGH, HIGH + step)
    assert set(held.acknowledged) == {other, later if step > 0 else ACKNOWLEDGED}


@pytest.mark.parametrize(
    ("compared", "kept"), [("here", "there"), ("", "here"), ("else", "here")], ids=["judged", "unread", "overtaken"]
)
async def test_another_memory_yields_only_to_who_judged_it(note: RedisSeen, compared: str, kept: str) -> None:
    """The note of another memory, which may be news, is not written over unread; its token is no matter."""
    with suppress(StoreError):
        await note.write(Seen("there", 1), compared)
    held = await note.read()
    assert held.identity == kept
    assert held.acknowledged == NOTE.acknowledged


@pytest.mark.parametrize("compared", ["here", ""], ids=["compared", "unread"])
async def test_what_a_later_link_stands_for_is_dropped_by_who_compared_it(note: RedisSeen, compared: str) -> None:
    """A link that was raised long before another one is dropped, by a writer that had compared it."""
    close = replace(ACKNOWLEDGED, link=UUID(int=4), at_us=NOW_US + 1)
    later = replace(ACKNOWLEDGED, link=UUID(int=3), at_us=NOW_US + STOOD_FOR_US + 1)
    await note.write(Seen("here", 1, ("third",), acknowledged=(close, later)), compared)
    held = await note.read()
    assert set(held.acknowledged) == ({close, later} if compared else {ACKNOWLEDGED, close, later})
    assert held.former == (("third",) if compared else NOTE.former)


async def test_a_note_is_bounded(note: RedisSeen) -> None:
    """However many gateways come and go, the note keeps the latest links, and it can be read at any moment."""
    for first in range(0, 3 * LINKS_MAX, 64):
        links = [replace(ACKNOWLEDGED, link=UUID(int=n), at_us=NOW_US + n) for n in range(first, first + 64)]
        await note.write(replace(NOTE, acknowledged=tuple(links)), "")
    held = await note.read()
    assert LINKS_MAX < len(held.acknowledged) < 3 * LINKS_MAX
    await note.write(replace(NOTE, acknowledged=tuple(links)), NOTE.identity)
    held = await note.read()
    assert len(held.acknowledged) == LINKS_MAX
    assert set(links) <= set(held.acknowledged)


GOOD = {"identity": "here", "token": f"{1:020}", "former": "[]"}
FOREIGN: dict[str, dict[str, str]] = {
    "no-token": {"identity": "here", "former": "[]"},
    "no-number": {**GOOD, "token": "x"},
    "beyond-any-store": {**GOOD, "token": str(TOKEN_MAX + 1)},
    "garbage": {**GOOD, "former": "{"},
    "names-no-text": {**GOOD, "former": "[5]"},
    "huge": {**GOOD, "x": " " * 1_000_000},
    "too-many-fields": {**GOOD, **{f"{number:032x}": "x" for number in range(5 * LINKS_MAX)}},
}


@pytest.mark.parametrize("fields", FOREIGN.values(), ids=FOREIGN)
async def test_foreign_fields_are_no_note(redis_url: str, fields: dict[str, str]) -> None:
    """Whatever somebody else left there is not believed."""
    with client(redis_url) as redis:
        redis.hset(KEY, mapping=fields)
    assert await RedisSeen(redis_url, NAME).read() is None


async def test_a_foreign_field_takes_no_link_away(note: RedisSeen, redis_url: str) -> None:
    """What cannot be read beside the links is left out, and dropped when somebody has compared the note."""
    with client(redis_url) as redis:
        redis.hset(KEY, mapping={"x": "y", "z" * 32: "1 2 3 4", f"{7:032x}": "-1 0 0 00", f"{8:032x}": "\x00"})
    assert await note.read() == NOTE
    await note.write(NOTE, "here")
    assert await note.read() == NOTE
    with client(redis_url) as redis:
        assert redis.hlen(KEY) == 5
