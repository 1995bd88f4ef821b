"""One connection to a real Redis: whose answer is whose, what a failure tells, and what is no entry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.operation import Record
from gateway.store.base import Indefinite, NotApplied, StoreError, boot_seconds
from gateway.store.redis import store as redis_store
from gateway.store.redis.connection import Link, parse, refusal_code
from gateway.store.redis.store import ERA_BYTES, decode, encode
from tests.conformance.hand import ANSWER
from tests.store.copies import completed, fast_tier, id_of, through, until_up
from tests.support.relay import Fault, Relay, Rule

LONG_SECONDS = 30.0


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    access = parse(redis_url)
    link = await access.open(access.seeds[0])
    yield link
    link.close()


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
    redis_url: str, fault: Fault, place: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that stops in the middle fails its caller, and what comes afterwards is right."""
    # A busy machine may need more for a whole one than the quarter of a second that there is.
    monkeypatch.setattr(redis_store, "GET_SECONDS", 1.0)
    marked, other = completed(b"a body with a MARK in it"), completed(b"another")
    async with Relay(urlsplit(redis_url).port or 6379) as relay, fast_tier(through(relay)) as tier:
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


ERA = b"e" * ERA_BYTES
EXPIRES_US = 1_800_000_000_000_000


def read_back(record: Record, entry: bytes) -> Record | None:
    decoded = decode(entry, record.identity.operation_id, ERA)
    return None if decoded is None else decoded[0]


def test_what_is_no_entry_of_this_record_and_era_is_not_found() -> None:
    """Of another era, of a later program, or with any other byte in its record."""
    record = completed().record
    assert decode(encode(record, ERA, EXPIRES_US), record.identity.operation_id, b"f" * ERA_BYTES) is None
    entry = bytearray(encode(record, ERA, EXPIRES_US))
    entry[11 + ERA_BYTES] += 1
    assert read_back(record, bytes(entry)) is None
    entry = encode(record, ERA, EXPIRES_US)
    for place in range(len(entry) - len(ANSWER.body or b""), len(entry)):
        assert read_back(record, entry[:place] + bytes((entry[place] ^ 1,)) + entry[place + 1 :]) is None


@given(st.binary(max_size=300), st.integers(0, 400), st.binary(min_size=1, max_size=8))
def test_garbage_is_not_found_and_harms_nobody(garbage: bytes, place: int, patch: bytes) -> None:
    """Neither foreign bytes nor a damaged entry raise anything."""
    record = completed().record
    entry = encode(record, ERA, EXPIRES_US)
    assert read_back(record, garbage) is None
    read_back(record, entry[:place] + patch + entry[place + len(patch) :])
