"""The relay: what it publishes, when again, and that one sink is nothing to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from gateway.core.delivery import BreakerPolicy
from gateway.core.operation import microseconds
from gateway.core.outbox import EventType, Outbox, PublishedEvent, Subscription
from gateway.events.relay import BUSY_SECONDS, LEASE_SECONDS, Outgoing, Publication, Relay, Sink
from gateway.observe.facts import Events, EventsPublished, Fact, SinkChanged
from gateway.observe.facts import PublicationResult as Result
from gateway.store.base import NotApplied
from tests.conformance.hand import SERVICE, Hand, do
from tests.support.eventually import eventually
from tests.support.faulty_store import FaultyStore, refused
from tests.support.memory_store import Memory, MemoryStore

KEEP_SECONDS = 1000.0
DELIVERED, FAILED = Publication(Result.DELIVERED), Publication(Result.FAILED, "HTTP 500")
TOO_LARGE = Publication(Result.REFUSED, "too large")


@dataclass
class ScriptedSink(Sink):
    """Gives these results one after the other, then `Delivered`; while `gate` is not set, none. `batches` has the
    number of events of each publication."""

    batch_max: int = 1
    batches: list[int] = field(default_factory=list)
    results: list[Publication] = field(default_factory=list)
    published: list[tuple[PublishedEvent, int]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.gate.set()

    async def publish(self, batch: Sequence[Outgoing]) -> Sequence[Publication]:
        self.batches.append(len(batch))
        self.published.extend(batch)
        results = [self.results.pop(0) if self.results else DELIVERED for _ in batch]
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return results


class House:
    """A store with events, and relays on it with the sinks `a` and `b`."""

    def __init__(self, *, is_ordered: bool) -> None:
        subscriptions = tuple(Subscription(name, frozenset(EventType), is_ordered=is_ordered) for name in ("a", "b"))
        memory = Memory()
        self.clock = memory.clock
        self.store = FaultyStore(MemoryStore(memory, outbox=Outbox(SERVICE, "urn:test", subscriptions)))
        self.a, self.b = ScriptedSink(), ScriptedSink()
        self.facts: list[Fact] = []
        self.relays: list[Relay] = []

    async def relay(self, *, failures: int = 1000, places: int = 4, busy_seconds: float = BUSY_SECONDS) -> Relay:
        self.a.places = self.b.places = places
        relay = Relay(
            self.store.cold,
            {"a": self.a, "b": self.b},
            Events(self.facts.append),
            service=SERVICE,
            keep_us=microseconds(KEEP_SECONDS),
            breaker=BreakerPolicy(failures, 10.0, 300.0),
            clock=lambda: self.clock.now_us / 1e6,
            draw=lambda: 0.5,
            busy_seconds=busy_seconds,
        )
        await relay.open()
        self.relays.append(relay)
        return relay

    async def complete(self, number: int = 1) -> None:
        for _ in range(number):
            await do(self.store, Hand(), Hand.claim, Hand.complete)

    async def waiting(self, sink: str) -> int:
        backlog = (await self.store.cold.sinks(SERVICE)).get(sink)
        return 0 if backlog is None else backlog.pending


@pytest.fixture
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    """Its sinks are ordered where the parameter says so."""
    house = House(is_ordered=getattr(request, "param", False))
    await house.store.start()
    yield house
    house.a.gate.set()
    house.b.gate.set()
    for relay in house.relays:
        await relay.close()


@asynccontextmanager
async def running(relay: Relay) -> AsyncIterator[None]:
    task = asyncio.create_task(relay.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def pump(relay: Relay) -> None:
    """One poll, the publications that it began, and the report of them."""
    await relay.run_once()
    await eventually(lambda: not relay.running)
    await relay.report()


async def test_a_sink_that_takes_several_events_gets_them_at_once(house: House) -> None:
    """Each has a result of its own: what failed is published again, and the rest never."""
    relay = await house.relay(places=2)
    house.a.batch_max = 3
    house.a.results = [DELIVERED, TOO_LARGE, FAILED, FAILED]
    await house.complete(7)
    await pump(relay)
    assert house.a.batches == [3, 3]
    await pump(relay)
    assert house.a.batches == [3, 3, 1]
    backlog = (await house.store.cold.sinks(SERVICE))["a"]
    assert (backlog.pending, backlog.dead) == (2, 1)
    results = [(fact.result, len(fact.events)) for fact in house.facts if isinstance(fact, EventsPublished)]
    for each in (("delivered", 2), ("refused", 1), ("failed", 1)):
        assert each in results
    house.clock.advance(2)
    await pump(relay)
    ids = [event.id for event, _ in house.a.published]
    assert ids[7:] == ids[2:4]
    assert len(set(ids)) == 7
    assert await house.waiting("a") == 0


async def test_a_backlog_is_published_without_waiting_for_a_poll(house: House) -> None:
    """However few events a sink takes at a time: when half of its places are free, it gets more."""
    relay = await house.relay(places=4, busy_seconds=3600.0)
    await house.complete(400)
    await relay.run_once()
    async with running(relay):
        await eventually(lambda: min(len(house.a.published), len(house.b.published)) == 400)
    assert len({event.id for event, _ in house.a.published}) == 400


@pytest.mark.parametrize("house", [True], indirect=True, ids=["ordered"])
async def test_a_line_is_published_without_waiting_for_a_poll(house: House) -> None:
    """Each event follows the one before as soon as that has arrived."""
    relay = await house.relay(busy_seconds=3600.0)
    for _ in range(50):
        await do(house.store, Hand(), lambda hand: replace(hand.accept(), lane=b"l" * 32))
    await relay.run_once()
    async with running(relay):
        await eventually(lambda: len(house.a.published) == len(house.b.published) == 50)
    places = [event.attributes()["sequence"] for event, _ in house.a.published]
    assert places == sorted(places)


async def test_a_sink_that_hangs_delays_no_other(house: House) -> None:
    """It takes its own places and no more, and the other one waits for no poll either."""
    relay = await house.relay(places=4, busy_seconds=3600.0)
    house.a.gate.clear()
    await house.complete(400)
    await relay.run_once()
    async with running(relay):
        await eventually(lambda: len(house.b.published) == 400)
        await eventually(lambda: relay.running == 4)
    assert len(house.a.published) == 4


async def test_what_failed_is_published_again_by_the_schedule(house: House) -> None:
    """With the same bytes; a longer wish of the consumer is obeyed."""
    relay = await house.relay()
    house.a.results = [FAILED, replace(FAILED, retry_after_us=microseconds(90))]
    await house.complete()
    await pump(relay)
    for seconds, number in ((0.9, 1), (0.2, 2), (89.0, 2), (1.1, 3)):
        house.clock.advance(seconds)
        await pump(relay)
        assert len(house.a.published) == number
    assert len({event.cloudevent() for event, _ in house.a.published}) == 1
    assert len(house.b.published) == 1
    assert await house.waiting("a") == 0


async def test_an_event_that_is_too_old_is_dead_and_listed(house: House) -> None:
    """It was tried until then, and is never silently gone."""
    relay = await house.relay()
    await house.complete()
    house.a.results = [FAILED] * 100
    for _ in range(30):
        await pump(relay)
        house.clock.advance(60)
    assert KEEP_SECONDS / 60 - 3 < len(house.a.published) < 25
    assert {name: each.dead for name, each in (await house.store.cold.sinks(SERVICE)).items()} == {"a": 1}
    house.a.results = []
    (dead,) = await house.store.cold.find_events(SERVICE, "a", is_dead=True, after=None, limit=10)
    assert dead.why == "HTTP 500"
    await house.store.cold.redeliver_event(SERVICE, dead.event_id, "a")
    await pump(relay)
    assert house.a.published[-1][1] == 1
    assert await house.store.cold.sinks(SERVICE) == {}


async def test_a_sink_that_fails_is_left_alone_for_a_while(house: House) -> None:
    """While its breaker is open no event is leased, and none loses a try; then one goes first."""
    relay = await house.relay(failures=2, places=2)
    house.a.results = [FAILED] * 2
    await house.complete(6)
    await pump(relay)
    assert len(house.a.published) == 2
    for _ in range(5):
        house.clock.advance(1)
        await pump(relay)
    assert len(house.a.published) == 2
    house.clock.advance(6)
    await pump(relay)
    assert len(house.a.published) == 3
    for _ in range(10):
        house.clock.advance(1)
        await pump(relay)
    assert await house.waiting("a") == 0
    failing = [(fact.is_failing, fact.cause) for fact in house.facts if isinstance(fact, SinkChanged)]
    assert failing == [(True, "HTTP 500"), (False, "")]


async def test_a_relay_that_dies_between_publication_and_report(house: House) -> None:
    """The next one publishes the event again, under the same id and with the same bytes: never a loss."""
    dead, heir = await house.relay(), await house.relay()
    await house.complete()
    await dead.run_once()
    await eventually(lambda: len(house.a.published) == 1)
    await pump(heir)
    assert len(house.a.published) == 1
    house.clock.advance(LEASE_SECONDS + 1)
    await pump(heir)
    (first, _), (second, _) = house.a.published
    assert (first.id, first.cloudevent()) == (second.id, second.cloudevent())
    assert await house.store.cold.sinks(SERVICE) == {}
    # And what the dead one says afterwards does no harm.
    await dead.report()
    assert await house.store.cold.sinks(SERVICE) == {}


async def test_a_report_that_the_store_did_not_take_is_given_again(house: House) -> None:
    """The event is not published again meanwhile, as long as its lease lasts."""
    relay = await house.relay()
    await house.complete()
    house.store.on("report_events", refused())
    await relay.run_once()
    await eventually(lambda: not relay.running)
    with pytest.raises(NotApplied):
        await relay.run_once()
    await pump(relay)
    assert len(house.a.published) == 1
    assert await house.store.cold.sinks(SERVICE) == {}


async def test_a_stop_during_a_report_reports_the_rest(house: House) -> None:
    """What a poll is just reporting is not the stop's to report, and what ended meanwhile is not lost."""
    relay = await house.relay()
    await house.complete()
    await relay.run_once()
    await eventually(lambda: not relay.running)
    reporting = house.store.stop_before("report_events")
    poll = asyncio.create_task(relay.run_once())
    await reporting.reached.wait()
    stop = asyncio.create_task(relay.close())
    await asyncio.sleep(0)
    reporting.opened.set()
    await asyncio.gather(poll, stop)
    assert [await house.waiting(sink) for sink in ("a", "b")] == [0, 0]


async def test_a_bug_of_a_sink_is_a_failure_like_others(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """The event waits, and the other sink goes on."""
    relay = await house.relay()
    house.a.error = RuntimeError("a bug")
    await house.complete()
    await pump(relay)
    assert await house.waiting("a") == 1
    assert await house.waiting("b") == 0
    assert "because of a bug" in caplog.text


async def test_a_store_that_fails_is_left_alone_however_much_happens(house: House) -> None:
    """Each wake would send it one more statement; the pause after a failure is made in full."""
    relay = await house.relay(busy_seconds=0.0)
    house.store.break_("lease_events", fault=refused())
    async with running(relay):
        relay.wake()
        await eventually(lambda: "lease_events" in house.store.said)
        for _ in range(100):
            relay.wake()
            await asyncio.sleep(0)
    assert house.store.said.count("lease_events") == 1
