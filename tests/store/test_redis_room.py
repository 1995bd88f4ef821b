"""What the log says of a Redis that is up and takes no copies."""

from __future__ import annotations

import logging

import pytest

from gateway.store.base import boot_seconds
from gateway.store.redis.connection import ROOM_SECONDS, Room, make_link
from tests.store.copies import client
from tests.support.redis import RedisServer

FULL = "Redis takes no copies: its memory is full"


async def test_a_full_server_that_runs_says_so_at_each_look(own_redis: RedisServer) -> None:
    """With what to do about it, for as long as it is full, and although everything there is can still be read."""
    link = make_link(own_redis.url, "era", boot_seconds)
    await link.open()
    try:
        assert link.refused == ""
        with client(own_redis.url) as redis:
            redis.config_set("maxmemory", 1)
            for _ in range(2):
                await link.look()
                assert link.refused == (
                    f"Redis at 127.0.0.1:{own_redis.port}/0 takes no copies: its memory is full (OOM); "
                    "raise maxmemory, or let maxmemory-policy evict keys"
                )
            redis.config_set("maxmemory", 0)
        await link.look()
        assert link.refused == ""
    finally:
        await link.close()


def test_no_room_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A server at its limit, which takes one copy and refuses the next, gives one line; so does the end of that."""
    now = [0.0]
    room = Room(lambda: now[0])
    with caplog.at_level(logging.INFO, "gateway"):
        for looked in ["", *[FULL, ""] * 50]:
            room.note(looked)
            now[0] += ROOM_SECONDS / 3
        assert caplog.messages == [f"{FULL}; until then replays come from the durable store"]
        for _ in range(10):
            room.note("")
            now[0] += ROOM_SECONDS / 3
    assert caplog.messages[1:] == ["Redis takes copies again"]
