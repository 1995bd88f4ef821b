"""The note of what gateways saw of their durable store, on a real Redis."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from gateway.store.base import StoreError
from gateway.store.epoch import Seen
from gateway.store.redis.seen import TOKEN_MAX, RedisSeen
from tests.store.copies import client
from tests.support.redis import RedisServer

NAME = "service shop, postgresql gateway"
KEY = f"idempotency-gateway:seen:{NAME}"
HIGH = 2**61 + 2**32 - 1
NOTE = Seen("here", HIGH, ("first", "second"), is_compared=True)


async def test_a_note_is_read_by_others(redis_url: str) -> None:
    """What one gateway writes another reads whole; where nobody wrote there is no note."""
    one, two = RedisSeen(redis_url, NAME), RedisSeen(redis_url, NAME)
    assert await two.read() is None
    await one.write(NOTE, "")
    assert await two.read() == NOTE
    assert await RedisSeen(redis_url, "service mail, postgresql gateway").read() is None


@pytest.mark.parametrize(
    "step", [-(2**32), -1, 0, 1, 2**32], ids=["far-lower", "lower", "equal", "higher", "far-higher"]
)
async def test_the_token_never_goes_back(redis_url: str, step: int) -> None:
    """Of one memory the highest token stays, compared exactly, whoever writes last."""
    note = RedisSeen(redis_url, NAME)
    await note.write(NOTE, "")
    await note.write(replace(NOTE, token=HIGH + step), NOTE.identity)
    held = await note.read()
    assert held is not None
    assert held.token == max(HIGH, HIGH + step)


async def test_many_writers_leave_the_highest(redis_url: str) -> None:
    """However the writes of several gateways fall, the highest token is there afterwards."""
    tokens = [HIGH + 7 * number % 31 for number in range(31)]
    await asyncio.gather(*(RedisSeen(redis_url, NAME).write(replace(NOTE, token=token), "") for token in tokens))
    held = await RedisSeen(redis_url, NAME).read()
    assert held is not None
    assert held.token == max(tokens)


@pytest.mark.parametrize(
    ("instead_of", "kept"), [("here", "there"), ("", "here"), ("else", "here")], ids=["judged", "unread", "overtaken"]
)
async def test_another_memory_yields_only_to_who_judged_it(redis_url: str, instead_of: str, kept: str) -> None:
    """The note of another memory, which may be news, is not written over unread; its token is no matter."""
    note = RedisSeen(redis_url, NAME)
    await note.write(NOTE, "")
    await note.write(Seen("there", 1), instead_of)
    held = await note.read()
    assert held is not None
    assert held.identity == kept


FOREIGN = {
    "empty": b"",
    "garbage": b"\xff{",
    "list": b"[]",
    "nested": b"[" * 5_000,
    "no-token": b'{"identity":"here","former":[]}',
    "number": b'{"identity":5,"token":"1","former":[]}',
    "infinite": b'{"identity":"here","token":1e999,"former":[]}',
    "beyond-any-store": json.dumps({"identity": "here", "token": str(TOKEN_MAX + 1), "former": []}).encode(),
    "negative": b'{"identity":"here","token":"-0000000000000000001","former":[]}',
    "too-many": json.dumps({"identity": "here", "token": "1", "former": ["x"] * 500}).encode(),
    "huge": b" " * 1_000_000 + b'{"identity":"here","token":"1","former":[]}',
}


@pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN)
async def test_foreign_bytes_are_no_note(redis_url: str, value: bytes) -> None:
    """Whatever somebody else left there is not believed."""
    with client(redis_url) as redis:
        redis.set(KEY, value)
    assert await RedisSeen(redis_url, NAME).read() is None


@pytest.mark.parametrize("kind", ["garbage", "list"])
async def test_what_is_no_note_is_replaced(redis_url: str, kind: str) -> None:
    """Bytes that cannot be read, and another type of value, make way."""
    note = RedisSeen(redis_url, NAME)
    with client(redis_url) as redis:
        if kind == "list":
            redis.lpush(KEY, "a")
        else:
            redis.set(KEY, b"{")
    assert await note.read() is None
    await note.write(NOTE, "")
    assert await note.read() == NOTE


async def test_a_note_that_nobody_could_read_is_not_written(redis_url: str) -> None:
    """A token out of all bounds does not take the place of a note that counts."""
    note = RedisSeen(redis_url, NAME)
    await note.write(NOTE, "")
    with pytest.raises(StoreError):
        await note.write(Seen("here", TOKEN_MAX + 1), "here")
    assert await note.read() == NOTE


async def test_a_server_that_is_away_is_an_error_until_it_is_back(own_redis: RedisServer) -> None:
    """Each question connects anew: what failed once does not fail the next."""
    note = RedisSeen(own_redis.url, NAME)
    await note.write(NOTE, "")
    own_redis.kill()
    for ask in (note.read, lambda: note.write(NOTE, "")):
        with pytest.raises(StoreError):
            await ask()
    own_redis.start()
    assert await note.read() is None
    own_redis.pause()
    try:
        with pytest.raises(StoreError):
            await note.read()
    finally:
        own_redis.resume()
    await note.write(NOTE, "")
    assert await note.read() == NOTE


async def test_a_question_given_up_leaves_no_answer_for_the_next(redis_url: str) -> None:
    """Cancelled callers, at any point, take nobody's answer and leave no connection behind."""
    note = RedisSeen(redis_url, NAME)
    await note.write(NOTE, "")
    for steps in range(12):
        asked = asyncio.create_task(note.read())
        for _ in range(steps):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert await note.read() == NOTE
