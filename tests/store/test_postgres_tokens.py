"""Tokens while somebody writes down what became of the store's memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.store.base import NotApplied
from gateway.store.memory.epoch import TOKENS_SKIPPED
from gateway.store.postgres.statements import EPOCH_LOCK
from tests.store.postgres_sessions import opened, session

# Draws, and how many of them were given what this session was given before, or less.
_DRAW = """
    SELECT count(*) FILTER (WHERE token <= before) FROM (
        SELECT token, lag(token) OVER (ORDER BY number) AS before FROM (
            SELECT number, nextval('idempotency_gateway.token') AS token FROM generate_series(1, 400000) AS number
        ) drawn
    ) compared
"""


def nowhere(_: int) -> int:
    return 0


def a_little_further(token: int) -> int:
    return token + 100


def far_away(token: int) -> int:
    return token + TOKENS_SKIPPED


@pytest.mark.parametrize("beyond", [nowhere, a_little_further, far_away])
async def test_what_is_noted_takes_no_token_back(migrated_url: str, beyond: Callable[[int], int]) -> None:
    """However many gateways note something of the memory, and draw tokens in that moment, each token is a new one."""
    async with (
        opened(migrated_url) as store,
        opened(migrated_url) as other,
        session(migrated_url) as one,
        session(migrated_url) as two,
    ):
        drawing = asyncio.gather(one.fetchval(_DRAW), two.fetchval(_DRAW))
        while not drawing.done():
            token = beyond((await store.check_memory()).token)
            await asyncio.gather(*(each.begin_epoch(b"accepted", token) for each in (store, other)))
            assert (await store.check_memory()).token >= token
        assert await drawing == [0, 0]


async def test_the_sequence_is_moved_by_one_at_a_time(migrated_url: str) -> None:
    """While one gateway notes something of the memory no other moves the sequence: it changes nothing and says so."""
    last_token = "SELECT last_value FROM idempotency_gateway.token"
    async with opened(migrated_url) as store, session(migrated_url) as other, session(migrated_url) as beside:
        before = await beside.fetchval(last_token)
        async with other.transaction():
            await other.execute(f"SELECT pg_advisory_xact_lock({EPOCH_LOCK})")
            with pytest.raises(NotApplied):
                await store.begin_epoch(b"accepted", far_away(before))
            assert await beside.fetchval(last_token) == before
        await store.begin_epoch(b"accepted", far_away(before))
        assert await beside.fetchval(last_token) == far_away(before)
