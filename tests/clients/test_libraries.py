"""Libraries for request and response: what their own retries come to, by the service's ledger and for their users."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.clients.libraries import Library, OpenAI, Stripe, route_for
from tests.observe.scrape import Scrape
from tests.support.eventually import eventually
from tests.support.house import House, house, sqlite_store
from tests.support.ports import free_port
from tests.support.relay import Fault, Relay
from tests.support.upstream import Answer, Ending, Received, RecordingUpstream

FAILED = b'{"error":{"type":"api_error","message":"not today"}}'
SECRETS = {"fingerprint_key": {"id": "1", "key": "k" * 32}}


@asynccontextmanager
async def home_of(library: Library, directory: Path, **changes: Any) -> AsyncIterator[House]:
    """A gateway with the library's route, `changes` in it, before a service that works."""
    route = route_for(library.row, library.path, **changes)
    async with house(sqlite_store(directory), directory, routes=[route], secrets=SECRETS) as home:
        home.upstream.on(library.path, library.answer)
        yield home


def lost(library: Library) -> Callable[[Received], Answer]:
    """The service does it, and its connection ends without a byte of the response."""
    return lambda received: replace(library.answer(received), bytes_max=0, ending=Ending.CLOSE)


async def verdicts(home: House) -> Counter[str]:
    """How many requests got which verdict: what the library sent, its own retries included."""
    series = Scrape((await home.status("/metrics")).body.decode()).series
    counted = (each for each in series if each.name == "idempotency_requests_total" and each.value)
    return Counter({each.labels["verdict"]: int(each.value) for each in counted})


async def test_a_response_lost_on_its_way_back(library: Library, tmp_path: Path) -> None:
    """The library tries again by itself and gets the recorded response: the thing was created once."""
    async with home_of(library, tmp_path) as home, Relay(home.port) as relay:
        relay.to_client.ambush(1, Fault.RESET)
        created = await asyncio.to_thread(library.create, relay.port, "k1")
        assert relay.to_client.fired.is_set()
        assert created.endswith("1")
        assert len(home.upstream.effects) == 1
        assert await verdicts(home) == {"stored": 1, "replayed": 1}


async def test_a_library_that_gives_up_waiting(library: Library, tmp_path: Path) -> None:
    """When its time is over it hangs up and tries again, and that waits for the first request's response."""
    async with home_of(library, tmp_path) as home, Relay(home.port) as relay:
        hold = asyncio.Event()
        home.upstream.on(library.path, lambda received: replace(library.answer(received), hold=hold))
        async with asyncio.TaskGroup() as calls:
            call = calls.create_task(asyncio.to_thread(library.create, relay.port, "k1", retries=8, timeout=0.5))
            await eventually(lambda: relay.connections >= 2, what="the library tries again")
            hold.set()
        assert call.result().endswith("1")
        assert len(home.upstream.requests) == 1


async def test_a_duplicate_that_may_not_wait(library: Library, tmp_path: Path) -> None:
    """It is refused while the first request runs; its message says to repeat with the same key, and that helps."""
    async with home_of(library, tmp_path, in_flight={"wait": "0s"}) as home:
        hold = asyncio.Event()
        home.upstream.on(library.path, lambda received: replace(library.answer(received), hold=hold))
        async with asyncio.TaskGroup() as calls:
            first = calls.create_task(asyncio.to_thread(library.create, home.port, "k1"))
            await home.upstream.wait_for_requests(1)
            with pytest.raises(library.errors["in-flight"], match=r"still running. Repeat with the same key") as raised:
                await asyncio.to_thread(library.create, home.port, "k1", retries=0)
            hold.set()
        assert type(raised.value) is library.errors["in-flight"]
        assert first.result() == await asyncio.to_thread(library.create, home.port, "k1")
        assert len(home.upstream.requests) == 1


async def test_another_request_under_a_used_key(library: Library, tmp_path: Path) -> None:
    """It is refused at once, with what to do, and not tried again."""
    async with home_of(library, tmp_path) as home:
        await asyncio.to_thread(library.create, home.port, "k1")
        with pytest.raises(library.errors["key-reused"], match=r"different request. Nothing was executed") as raised:
            await asyncio.to_thread(library.create, home.port, "k1", 9900)
        assert type(raised.value) is library.errors["key-reused"]
        assert "Use a new key for a new intent." in str(raised.value)
        assert len(home.upstream.requests) == 1
        assert await verdicts(home) == {"stored": 1, "key-reused": 1}


async def test_members_in_another_order(tmp_path: Path) -> None:
    """Stripe's library writes the members of a form in the order that it gets them, which makes no other request."""
    library = Stripe()
    async with home_of(library, tmp_path) as home:
        made = [
            await asyncio.to_thread(library.create, home.port, "k1", metadata=metadata)
            for metadata in ({"order": "6735", "part": "2"}, {"part": "2", "order": "6735"})
        ]
        assert made[0] == made[1]
        assert len(home.upstream.effects) == 1
        with pytest.raises(library.errors["key-reused"]):
            await asyncio.to_thread(library.create, home.port, "k1", metadata={"order": "2", "part": "6735"})


async def test_doubt_that_is_held(library: Library, tmp_path: Path) -> None:
    """The library hears that nobody knows, and stops; its user is told not to take a new key."""
    async with home_of(library, tmp_path) as home:
        home.upstream.on(library.path, lost(library), library.answer)
        with pytest.raises(library.errors["lost"], match="Do not send it again under a new key") as raised:
            await asyncio.to_thread(library.create, home.port, "k1")
        assert type(raised.value) is library.errors["lost"]
        (received,) = home.upstream.requests
        (operation,) = received.values("Idempotency-Operation")
        assert operation.decode() in str(raised.value)
        assert await verdicts(home) == {"in-doubt": 1}
        with pytest.raises(library.errors["in-doubt"]):
            await asyncio.to_thread(library.create, home.port, "k1")
        assert len(home.upstream.requests) == 1
        assert await verdicts(home) == {"in-doubt": 2}


async def test_doubt_that_is_sent_again(library: Library, tmp_path: Path) -> None:
    """Where the service deduplicates, the library's own retry is sent again, and its user sees no failure."""
    async with home_of(library, tmp_path, recovery="resend") as home:
        home.upstream.on(library.path, lost(library), lambda received: _once(library, home, received))
        assert (await asyncio.to_thread(library.create, home.port, "k1")).endswith("2")
        first, second = home.upstream.requests
        assert first.values("Idempotency-Key") == second.values("Idempotency-Key")
        assert len(home.upstream.effects) == 1


@pytest.mark.parametrize("status", [500, 503])
async def test_a_failure_that_had_no_effect(library: Library, tmp_path: Path, status: int) -> None:
    """Under `standard` a 500 and a 503 say that nothing happened: the library's own retry runs."""
    async with home_of(library, tmp_path) as home:
        home.upstream.on(library.path, Answer(status, body=FAILED, effect=False), library.answer)
        assert (await asyncio.to_thread(library.create, home.port, "k1")).endswith("2")
        assert len(home.upstream.effects) == 1
        assert await verdicts(home) == {"released": 1, "stored": 1}


@pytest.mark.parametrize("status", [500, 503])
async def test_a_failure_that_may_have_had_one(library: Library, tmp_path: Path, status: int) -> None:
    """Under `payments` they leave it open: the library's own retry does not run, and its user hears why."""
    async with home_of(library, tmp_path, outcome={"preset": "payments"}) as home:
        home.upstream.on(library.path, Answer(status, body=FAILED), library.answer)
        with pytest.raises(library.errors["in-doubt"], match="Do not send it again under a new key"):
            await asyncio.to_thread(library.create, home.port, "k1")
        assert len(home.upstream.requests) == 1
        assert await verdicts(home) == {"in-doubt": 2}


async def test_a_rate_limit(library: Library, tmp_path: Path) -> None:
    """A 429 settles nothing: the same key runs once the service takes it, whoever tries again."""
    async with home_of(library, tmp_path) as home:
        home.upstream.on(library.path, Answer(429, body=FAILED, effect=False), library.answer)
        with pytest.raises(library.errors["429"]):
            await asyncio.to_thread(library.create, home.port, "k1", retries=0)
        assert (await asyncio.to_thread(library.create, home.port, "k1")).endswith("2")
        assert len(home.upstream.effects) == 1


async def test_a_response_that_was_not_kept(library: Library, tmp_path: Path) -> None:
    """The first caller gets it; a later one hears that it was answered, at once and without a retry."""
    async with home_of(library, tmp_path, response={"max_stored_bytes": 0}) as home:
        await asyncio.to_thread(library.create, home.port, "k1")
        with pytest.raises(library.errors["response-not-stored"], match="was answered with 200") as raised:
            await asyncio.to_thread(library.create, home.port, "k1")
        assert "Do not repeat it under a new key." in str(raised.value)
        assert len(home.upstream.requests) == 1
        assert await verdicts(home) == {"response-not-stored": 2}


async def test_a_service_that_cannot_be_reached(library: Library, tmp_path: Path) -> None:
    """The user hears that nothing was sent; the same key runs when the service is back."""
    port = free_port()
    route = route_for(library.row, library.path)
    changes = {"routes": [route], "upstream": {"url": f"http://127.0.0.1:{port}"}}
    async with house(sqlite_store(tmp_path), tmp_path, **changes) as home:
        with pytest.raises(library.errors["upstream-unreachable"], match=r"nothing was sent. Repeat with the same key"):
            await asyncio.to_thread(library.create, home.port, "k1", retries=0)
        async with RecordingUpstream(port=port) as service:
            service.on(library.path, library.answer)
            assert (await asyncio.to_thread(library.create, home.port, "k1")).endswith("1")
            assert len(service.effects) == 1


async def test_accounts_behind_one_credential(tmp_path: Path) -> None:
    """Stripe: a second account that uses a key is refused, and does not get the first one's charge."""
    library = Stripe()
    async with home_of(library, tmp_path) as home:
        await asyncio.to_thread(library.create, home.port, "k1", account="acct_1")
        with pytest.raises(library.errors["key-reused"]):
            await asyncio.to_thread(library.create, home.port, "k1", account="acct_2")
        assert len(home.upstream.requests) == 1


async def test_no_key(tmp_path: Path) -> None:
    """OpenAI: without a key nothing is executed and nothing tried again; the message says what is missing."""
    library = OpenAI()
    async with home_of(library, tmp_path) as home:
        with pytest.raises(openai.BadRequestError, match=r"needs an idempotency key. Nothing was executed"):
            await asyncio.to_thread(library.create, home.port, None)
        assert home.upstream.requests == []
        assert await verdicts(home) == {"key-missing": 1}


def _once(library: Library, home: House, received: Received) -> Answer:
    """A service that executes once for each key that it gets."""
    key = received.values("Idempotency-Key")
    done = any(each.values("Idempotency-Key") == key for each in home.upstream.effects)
    return replace(library.answer(received), effect=not done)
