"""One connection to a real Redis: whose answer is whose, what a failure tells, and what the server's clock shows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from gateway.core.confidential import NO_SEALING
from gateway.store.base import Indefinite, NotApplied, StoreError, boot_seconds
from gateway.store.redis import store as redis_store
from gateway.store.redis.connection import Link, parse, refusal_code
from gateway.store.redis.store import ROOM_SECONDS, Keyspace, Node
from tests.store.copies import client, completed, fast_tier, id_of, through, until_up
from tests.support.relay import Fault, Relay, Rule

FULL = "Redis takes no copies: its memory is full"

LONG_SECONDS = 30.0
ONE_SERVER = Keyspace("", "", is_cluster=False)


@asynccontextmanager
async def node_at(
    url: str,
    *,
    keys: Keyspace = ONE_SERVER,
    buckets: Collection[int] = (0,),
    on_moved: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = boot_seconds,
) -> AsyncIterator[Node]:
    """A node with these buckets, or the one that there is, after a look at its server."""
    access = parse(url)
    node = Node(
        access, access.seeds[0], keys, clock=clock, sealing=NO_SEALING, on_change=lambda: None, on_moved=on_moved
    )
    node.own(buckets)
    await node.check()
    try:
        yield node
    finally:
        await node.close()


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    access = parse(redis_url)
    link = await access.open(access.seeds[0])
    yield link
    link.close()


@pytest.fixture
async def relay(redis_url: str) -> AsyncIterator[Relay]:
    async with Relay(urlsplit(redis_url).port or 6379) as relay:
        yield relay


async def test_a_cancelled_exchange_leaves_no_answer_for_the_next(link: Link) -> None:
    """What comes for who has left is nobody's: those behind it get their own replies."""
    waiting = asyncio.create_task(link.exchange([("BLPOP", "nothing", 0.1)], LONG_SECONDS))
    following = asyncio.create_task(link.exchange([("ECHO", "a")], LONG_SECONDS))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await following == [b"a"]
    assert await link.exchange([("ECHO", "b")], LONG_SECONDS) == [b"b"]


async def test_a_late_answer_closes_the_link(link: Link) -> None:
    """All who wait for one are told that it is not known what came of theirs; who comes then, that nothing was sent."""
    waiting = [link.exchange([("BLPOP", "nothing", 0)], 0.1), link.exchange([("ECHO", "a")], LONG_SECONDS)]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in results] == [Indefinite, Indefinite]
    with pytest.raises(NotApplied):
        await link.exchange([("ECHO", "b")], LONG_SECONDS)


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize("place", [b"MARK", b"$72", b"\r\nigR"], ids=["in-the-body", "in-the-era", "in-the-entry"])
async def test_an_answer_that_is_cut_is_none(
    relay: Relay, redis_url: str, fault: Fault, place: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that stops in the middle fails its caller, and what comes afterwards is right."""
    # A busy machine may need more for a whole one than the quarter of a second that there is.
    monkeypatch.setattr(redis_store, "GET_SECONDS", 1.0)
    marked, other = completed(b"a body with a MARK in it"), completed(b"another")
    async with fast_tier(through(relay)) as tier:
        for snapshot in (marked, other):
            await tier.put(snapshot, boot_seconds())
        relay.to_client.rule = Rule(place, fault)
        with pytest.raises(StoreError):
            await tier.get(id_of(marked))
        assert relay.to_client.fired.is_set()
        relay.to_client.rule = None
        await until_up(tier)
        assert (await tier.get(id_of(other))).record == other.record
        assert (await tier.get(id_of(marked))).record == marked.record


REFUSALS = (
    ("OOM command not allowed when used memory > 'maxmemory'.", "OOM"),
    ("Error running script (call to f_1): @user_script:33: @user_script: 33: -OOM command not allowed", "OOM"),
    ("READONLY You can't write against a read only replica.", "READONLY"),
    ("Error running script (call to f_1): @user_script:7: WRONGTYPE Operation against a key", "WRONGTYPE"),
    ("@user_script: 9: The user executing the script can't run this command or subcommand", "NOPERM"),
    ("ERR ACL failure in script: User u has no permissions to run the 'set' command", "NOPERM"),
    ("ERR unknown command 'x'", "unknown"),
    ("unknown command 'HELLO', with args beginning with: 'SECRET' ", "unknown"),
    ("unknown command 'x'", "unknown"),
    ("", ""),
)


def test_a_refusal_is_told_in_a_word() -> None:
    """The code of an error is told, and nothing that it may quote."""
    assert [refusal_code(text) for text, _ in REFUSALS] == [word for _, word in REFUSALS]


async def test_no_room_is_told_once(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server at its limit, which takes one copy and refuses the next, gives one line; so does the end of that."""
    now = [0.0]
    async with node_at(redis_url, clock=lambda: now[0]) as node:
        caplog.set_level(logging.INFO, "gateway")
        for looked in ["", *[FULL, ""] * 50]:
            node.note_room(looked)
            now[0] += ROOM_SECONDS / 3
        assert caplog.messages == [f"{FULL}; until then replays come from the durable store"]
        for _ in range(10):
            node.note_room("")
            now[0] += ROOM_SECONDS / 3
    assert caplog.messages[1:] == ["Redis takes copies again"]


async def test_the_servers_clock_is_never_shown_too_late(redis_url: str) -> None:
    """A local moment is mapped to what the server's clock showed then, or less, however old the reading is."""
    async with node_at(redis_url) as node:
        with client(redis_url) as redis:
            for seconds_ago in (0.0, 1.0, 1_000.0):
                moment = boot_seconds()
                seconds, microseconds = redis.time()
                now_us = int(seconds) * 1_000_000 + int(microseconds)
                assert node.server_us(moment) <= now_us
                assert node.server_us(moment - seconds_ago) <= now_us - int(seconds_ago * 1_000_000)
                await node.check()
