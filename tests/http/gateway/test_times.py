"""How long a whole gateway waits before it believes in a doubt's end, on clocks that only the test moves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.app.parts import Environment
from gateway.core.operation import State
from tests.http.gateway.asking import until
from tests.http.gateway.test_recovery import LOST, charges, probed, probes
from tests.support.clocks import Clocks
from tests.support.eventually import eventually
from tests.support.faulty_store import FaultyStore, refused
from tests.support.house import House, house, neighbour, sqlite_store, status_of
from tests.support.upstream import Answer

LEASE_SECONDS = 30.0
RESPONSE_SECONDS = 5.0
TCP_SECONDS = 30.0
NOTHING_THERE = Answer(404, effect=False)
RESENT: dict[str, Any] = {"recovery": "resend", "in_flight": {"wait": "0s"}}


@pytest.fixture
def clocks(tmp_path: Path) -> Clocks:
    return Clocks(tmp_path)


@asynccontextmanager
async def asked_about(clocks: Clocks, **probe: Any) -> AsyncIterator[House]:
    """An operation in doubt, "k1", whose upstream says that it does not know of it."""
    route = probed(**probe) | {"in_flight": {"wait": "1s"}}
    times = {"answer_within": "5s", "response_timeout": f"{RESPONSE_SECONDS:g}s"}
    store = sqlite_store(clocks.directory)
    async with house(store, clocks.directory, surround=clocks.surround, route=route, upstream=times) as home:
        home.upstream.on(None, NOTHING_THERE)
        home.upstream.on("/charges", LOST, Answer(201))
        assert status_of(await home.send("k1")) == (502, "in-doubt")
        # Nobody probes but who repeats the request.
        home.gateway.parts.stop_upkeep()
        yield home


async def is_believed(home: House, *, wait_seconds: int = 1) -> bool:
    """Whether a probe of the operation in doubt ends it: then the repeat that asked for it is executed."""
    before = len(probes(home)), len(charges(home))
    verdict = status_of(await home.send("k1", headers=[("Prefer", f"wait={wait_seconds}")]))
    # The repeat may have been answered before its probe was over.
    await eventually(lambda: not home.gateway.parts.prober._inquiries)
    assert verdict in [(409, "in-doubt"), (201, "stored")]
    is_believed = verdict == (201, "stored")
    assert len(probes(home)) > before[0]
    assert len(charges(home)) == before[1] + is_believed
    return is_believed


@pytest.mark.parametrize(
    ("probe", "settle_seconds"),
    [({}, RESPONSE_SECONDS + TCP_SECONDS), ({"settle": "50s"}, 50.0)],
    ids=["as-the-upstream-asks-for", "as-the-route-says"],
)
async def test_a_404_frees_the_key_once_no_request_can_arrive(
    clocks: Clocks, probe: dict[str, str], settle_seconds: float
) -> None:
    """Not when the attempt has ended, but as much later as a request may still be on its way."""
    async with asked_about(clocks, **probe) as home:
        clocks.pass_time(settle_seconds - 1, home)
        assert not await is_believed(home)
        clocks.pass_time(2, home)
        assert await is_believed(home, wait_seconds=20)


async def test_a_404_frees_no_key_after_a_step_of_the_store_s_clock(clocks: Clocks) -> None:
    """A clock that was set ahead shows an end of the lease that has not come; the wait begins anew."""
    async with asked_about(clocks) as home:
        settle_seconds = RESPONSE_SECONDS + TCP_SECONDS
        clocks.store.advance(LEASE_SECONDS + settle_seconds + 1)
        assert not await is_believed(home)
        clocks.pass_time(LEASE_SECONDS + settle_seconds + 1, home)
        assert await is_believed(home, wait_seconds=20)


async def test_a_slow_operation_keeps_its_claim(clocks: Clocks) -> None:
    """For as long as the upstream works on it, the gateway renews its lease by itself."""
    section = sqlite_store(clocks.directory)
    async with house(section, clocks.directory, surround=clocks.surround, store={"lease": "3s"}) as home:
        task, hold = await home.begin("k1", answer=Answer(201))
        operation_id = UUID(charges(home)[0].values("Idempotency-Operation")[0].decode())
        for _ in range(5):
            clocks.pass_time(1)

            async def is_renewed() -> bool:
                snapshot = await home.gateway._store.read(operation_id)
                assert snapshot.record is not None
                assert snapshot.record.state is State.CLAIMED
                return snapshot.record.lease_until_us > snapshot.now_us + 2_000_000

            await eventually(is_renewed)
        hold.set()
        assert status_of(await task) == (201, "stored")


async def test_lapsed_claim_waits_for_its_owners_journal(clocks: Clocks) -> None:
    """A claim whose owner went silent is not taken over before the owner had time to come back with its outcome."""
    section = sqlite_store(clocks.directory)
    settings: dict[str, Any] = {"route": RESENT, "store": {"journal_grace": "20s"}}
    async with (
        house(section, clocks.directory / "owner", surround=clocks.frozen, **settings) as owner,
        neighbour(section, clocks.directory, owner.upstream, surround=clocks.surround, **settings) as home,
    ):
        # For so long it knows that the store is there.
        assert status_of(await home.send("before")) == (200, "stored")
        task, hold = await owner.begin("k1", answer=Answer(201, body=b"first"))
        clocks.pass_time(LEASE_SECONDS + 19, home)
        home.upstream.on("/charges", Answer(201, body=b"again"))
        assert status_of(await home.send("k1")) == (409, "in-doubt")
        assert len(charges(home)) == 2
        clocks.pass_time(2, home)
        assert status_of(await home.send("k1")) == (201, "stored")
        assert len(charges(home)) == 3
        hold.set()
        await task


async def test_what_a_journal_of_this_host_knows_is_not_taken_over(clocks: Clocks) -> None:
    """A gateway beside tells an outcome that the store does not take, and does not send the request again."""
    section = sqlite_store(clocks.directory)
    stores: list[FaultyStore] = []

    def failing(environment: Environment) -> Environment:
        environment = clocks.surround(environment)
        stores.append(FaultyStore(environment.durable))
        if len(stores) == 1:
            # It takes no outcome from the first one.
            stores[0].break_("complete", fault=refused())
        return replace(environment, durable=stores[-1])

    settings: dict[str, Any] = {"surround": failing, "route": RESENT, "store": {"journal_grace": "20s"}}
    async with house(section, clocks.directory, **settings) as home:
        home.upstream.on("/charges", Answer(201, body=b"once"), Answer(201, body=b"twice"))
        assert status_of(await home.send("k1")) == (201, "journaled")
        async with neighbour(section, clocks.directory, home.upstream, **settings) as later:
            clocks.pass_time(LEASE_SECONDS + 21, later)
            assert status_of(await later.send("another")) == (201, "stored")
            clocks.pass_time(21, later)
            again = await later.send("k1")
            assert (status_of(again), again.body) == ((201, "replayed"), b"once")
            assert again.header("Idempotency-Expires") is None
            assert len(charges(later)) == 2


HOUR_SECONDS = 3600
QUICK: dict[str, Any] = {"in_flight": {"wait": "0s"}}


def jump(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Move this process's wall clock, for whoever asks for it from now on."""
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + seconds)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + seconds * 1_000_000_000)


@pytest.mark.parametrize("seconds", [HOUR_SECONDS, -HOUR_SECONDS], ids=["forward", "back"])
async def test_a_gateways_wall_clock_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres_url: str, seconds: int
) -> None:
    """With another clock than the store's, what was stored is replayed until the same moment as before, what runs keeps
    its claim, and new keys run."""
    store = {"durable": postgres_url}
    async with house(store, tmp_path, route=QUICK) as home:
        before = await home.send("before")
        assert status_of(before) == (200, "stored")
        hold = asyncio.Event()
        home.upstream.on("/charges", Answer(201, hold=hold), Answer())
        running = asyncio.create_task(home.send("running"))
        await home.upstream.wait_for_requests(2)
        jump(monkeypatch, seconds)
        assert status_of(await home.send("at-once")) == (200, "stored")
        async with neighbour(store, tmp_path / "n", home.upstream, route=QUICK) as other:
            assert status_of(await other.send("running")) == (409, "in-flight")
            for each in (home, other):
                again = await each.send("before")
                assert status_of(again) == (200, "replayed")
                assert again.header("Idempotency-Expires") == before.header("Idempotency-Expires") is not None
            assert status_of(await home.send("after")) == (200, "stored")
            assert status_of(await other.send("after")) == (200, "replayed")
            hold.set()
            assert status_of(await running) == (201, "stored")
            assert status_of(await other.send("running")) == (201, "replayed")
        assert len(home.upstream.requests) == 4


@pytest.mark.parametrize("seconds", [HOUR_SECONDS, -HOUR_SECONDS], ids=["forward", "back"])
async def test_a_stores_clock_runs_nothing_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: int) -> None:
    """When the store's clock jumps a lease may lapse; what was sent is not sent again, and its late answer counts."""
    store = sqlite_store(tmp_path)
    async with house(store, tmp_path, route=QUICK) as home:
        assert status_of(await home.send("before")) == (200, "stored")
        hold = asyncio.Event()
        home.upstream.on("/charges", Answer(201, hold=hold), Answer())
        running = asyncio.create_task(home.send("running"))
        await home.upstream.wait_for_requests(2)
        jump(monkeypatch, seconds)
        assert status_of(await home.send("at-once")) == (200, "stored")
        async with neighbour(store, tmp_path / "n", home.upstream, route=QUICK) as other:
            assert status_of(await other.send("running"))[1] in ("in-flight", "in-doubt")
            assert status_of(await other.send("before")) == (200, "replayed")
            hold.set()
            assert status_of(await running) == (201, "stored")
            await until((201, "replayed"), other.send, "running")
        assert len(home.upstream.requests) == 3
