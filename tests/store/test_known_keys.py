"""A key that the store knows, where the answer under it cannot be had: nobody may take it for one that is free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.core.operation import State
from gateway.protect.claiming import Unavailable
from gateway.store.base import Indefinite, Unreadable
from tests.conformance.hand import SAME, Hand, do
from tests.store.postgres_sessions import EXECUTE, opened
from tests.support.coordination import INFO, claiming_on, request_for
from tests.support.postgres import PostgresServer
from tests.support.relay import Fault, Relay, Rule

# In the statement that reads records, which is sent with the first of them.
READ = b"AS is_left"


def relayed(relay: Relay) -> str:
    return f"postgresql://gateway@127.0.0.1:{relay.port}/postgres"


def refuse(relay: Relay) -> None:
    """The connection for reads breaks with the first one, and as many as the server allows are open."""
    relay.to_target.rule = Rule(READ, Fault.RESET)
    relay.refuse()


def swallow(relay: Relay) -> None:
    """It does not break, and nothing comes over it."""
    relay.to_target.rule = Rule(READ, Fault.SWALLOW)


@pytest.mark.parametrize("fail", [refuse, swallow])
async def test_a_known_key_is_not_free_for_want_of_its_answer(
    fail: Callable[[Relay], None], own_postgres: PostgresServer
) -> None:
    """Where a claim has found a completed record and no connection is left to read the answer over, a route that does
    without a store that is away does not execute the request, however long the store takes to say so."""
    async with Relay(own_postgres.port) as relay, opened(relayed(relay), connect_seconds=2.0) as store:
        hand = Hand()
        await do(store, hand, Hand.claim, Hand.complete)
        assert hand.snapshot.state is State.COMPLETED
        fail(relay)
        claiming = claiming_on(store)
        request = request_for(hand.script.identity, SAME, is_executed_anyway=True, patience_seconds=1.0)
        admission = await claiming.claim(request, INFO)
        assert isinstance(admission, Unavailable)
        assert admission.is_refused
        await claiming.close()


async def test_a_key_that_somebody_is_claiming_is_not_free(own_postgres: PostgresServer) -> None:
    """Where a claim waited in vain for another one that has yet to commit, a route that does without a store that is
    away does not execute the request: the other one may be granted."""
    async with (
        Relay(own_postgres.port) as relay,
        opened(relayed(relay), command_seconds=3.0) as slow,
        opened(own_postgres.url, command_seconds=2.0) as store,
    ):
        await do(slow, Hand(), Hand.claim)
        # The statement arrives, and what ends it does not.
        relay.to_target.rule = Rule(EXECUTE, Fault.SWALLOW)
        hand = Hand()
        granting = asyncio.create_task(slow.apply(hand.claim()))
        await relay.to_target.fired.wait()
        claiming = claiming_on(store)
        request = request_for(hand.script.identity, SAME, is_executed_anyway=True)
        admission = await claiming.claim(request, INFO)
        assert isinstance(admission, Unavailable)
        assert (admission.is_definite, admission.is_refused) == (True, True)
        await claiming.close()
        with pytest.raises(Indefinite):
            await granting


async def test_a_command_on_a_known_key_changed_nothing(own_postgres: PostgresServer) -> None:
    """Whoever says anything of such a record hears that it is there, and that nothing was changed."""
    async with Relay(own_postgres.port) as relay, opened(relayed(relay)) as store:
        hand = Hand()
        await do(store, hand, Hand.claim, Hand.renew, Hand.complete)
        refuse(relay)
        for command in (hand.claim(), hand.complete_grant()):
            with pytest.raises(Unreadable):
                await store.apply(command)
