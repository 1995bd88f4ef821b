"""A key that the store knows, where the answer under it cannot be had: nobody may take it for one that is free."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.core.operation import State
from gateway.protect.claiming import Unavailable
from tests.conformance.hand import SAME, Hand, do
from tests.store.postgres_sessions import opened
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
        await do(store, hand := Hand(), Hand.claim, Hand.complete)
        assert hand.snapshot.state is State.COMPLETED
        fail(relay)
        claiming = claiming_on(store)
        request = request_for(hand.script.identity, SAME, is_executed_anyway=True, patience_seconds=1.0)
        admission = await claiming.claim(request, INFO)
        assert isinstance(admission, Unavailable)
        assert admission.is_refused
        await claiming.close()
