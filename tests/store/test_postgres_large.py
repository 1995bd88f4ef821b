"""Long answers in Postgres: how many of them come at once over one connection."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gateway.core.operation import Snapshot
from tests.conformance.hand import ANSWER, Hand, do
from tests.store.postgres_sessions import opened
from tests.support.postgres import PostgresServer
from tests.support.relay import Relay

BODY_BYTES = 4 * 1024 * 1024
# A chunk of the relay's takes so long: one body a third of a second, and all of them twice what a statement may take.
CHUNK_SECONDS = 0.005
COMMAND_SECONDS = 1.5
COUNT = 9


async def test_long_answers_at_once_are_read_one_after_another(own_postgres: PostgresServer) -> None:
    """Where each of many long answers can be read in the time of one statement, all of them are, also at once."""
    async with (
        Relay(own_postgres.port) as relay,
        opened(own_postgres.url) as writing,
        opened(f"postgresql://gateway@127.0.0.1:{relay.port}/postgres", command_seconds=COMMAND_SECONDS) as store,
    ):
        hands = [Hand() for _ in range(COUNT)]
        answers = [replace(ANSWER, body=bytes([number]) * BODY_BYTES) for number in range(COUNT)]
        for hand, answer in zip(hands, answers, strict=True):
            await do(writing, hand, Hand.claim, lambda hand, answer=answer: hand.complete(answer))
        await store.read(Hand().operation_id)
        relay.to_client.delay_seconds = CHUNK_SECONDS
        found = await asyncio.gather(*(store.read(hand.operation_id) for hand in hands), return_exceptions=True)
        for snapshot, answer in zip(found, answers, strict=True):
            assert isinstance(snapshot, Snapshot)
            assert snapshot.record is not None
            assert snapshot.record.response == answer
