"""Accepted requests are delivered: once, in time, and never beside an attempt that may have had its effect."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.core.confidential import EncryptionKey, KeyRing
from gateway.core.operation import Audit, SealedRequest, State
from gateway.observe.facts import BreakerChanged, DeliveryAttempted, DeliveryResult
from gateway.protect import claiming
from gateway.protect import operation as runs
from gateway.protect.operation import Drained
from gateway.store.base import Unreadable
from tests.support.depot import HOUR, Depot, accepting, depot
from tests.support.eventually import eventually
from tests.support.faulty_store import lost, refused
from tests.support.memory_store import Memory, MemoryStore
from tests.support.ports import free_port
from tests.support.upstream import Answer, Ending, RecordingUpstream, silent_tls

LONG: dict[str, Any] = {"delivery": {"deliver_within": "10d"}, "retention": {"remember": "30d"}}
AUDIT = Audit("me", "because")
# All pauses of the default schedule.
SCHEDULE = (1, 5, 30, 120, 600, 1800, 3600)
LOST = Answer(bytes_max=0, ending=Ending.CLOSE)
CUT = Answer(bytes_max=30, ending=Ending.CLOSE)


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims are repeated without pauses, and final commands are tried for a tenth of a second."""
    monkeypatch.setattr(claiming, "_PAUSES_SECONDS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(runs, "_FINAL_COMMAND_SECONDS", 0.1)


# What a response, or the lack of one, means

RETRY: dict[str, Any] = {"delivery": {"unauthorized": "retry"}}


LATER, NO_NUMBER = (Answer(code, headers=(("Retry-After", text),)) for code, text in ((503, "120"), (429, "soon")))
# What an answer comes to: the route, the state, and the failure with the bounds of the pause.
COMES_TO: dict[str, tuple[Answer, dict[str, Any], State, str | None, tuple[float, float] | None]] = {
    "201": (Answer(201), {}, State.COMPLETED, None, None),
    "422": (Answer(422), {}, State.COMPLETED, None, None),
    "503": (Answer(503), {}, State.ACCEPTED, "answered_503", (0.5, 1)),
    "retry-after": (LATER, {}, State.ACCEPTED, "answered_503", (120, 120)),
    "no-number": (NO_NUMBER, {}, State.ACCEPTED, "answered_429", (0.5, 1)),
    "401": (Answer(401), {}, State.DEAD_LETTER, "answered_401", None),
    "403-retry": (Answer(403), RETRY, State.ACCEPTED, "answered_403", (0.5, 1)),
    "502": (Answer(502), {}, State.IN_DOUBT, None, None),
    "no-response": (LOST, {}, State.IN_DOUBT, None, None),
    "half-a-response": (CUT, {}, State.IN_DOUBT, None, None),
}


@pytest.mark.parametrize("answer", COMES_TO)
async def test_what_an_attempt_comes_to(tmp_path: Path, answer: str) -> None:
    """Exactly as it is written down; and whoever looks at the log sees it."""
    given, route, state, failure, pauses = COMES_TO[answer]
    async with depot(tmp_path, route=accepting(**route)) as it:
        it.office.upstream.on("/charges", given)
        await it.accept()
        await it.poll()
        assert it.office.state is state
        (told,) = it.office.told(DeliveryAttempted)
        result = "POSTPONED" if state is State.ACCEPTED else state.name
        assert (told.result, told.attempt, told.route) == (DeliveryResult[result], 1, "charge")
        if failure is not None:
            assert (it.kept.failure, it.kept.answers) == (failure, 1)
        if pauses is not None:
            pause = (it.kept.next_attempt_us - it.office.memory.clock()) / 1e6
            assert pauses[0] <= pause <= pauses[1]
            assert told.pause_seconds == pytest.approx(pause)


async def test_the_reason_of_a_dead_letter(tmp_path: Path) -> None:
    """After so many responses without effect nothing is sent any more, until somebody says so."""
    async with depot(tmp_path, route=accepting(delivery={"max_answers": 3})) as it:
        it.office.upstream.on("/charges", Answer(503))
        await it.accept()
        await it.pass_time(120, 10)
        assert (it.office.state, it.kept.reason, it.kept.answers) == (State.DEAD_LETTER, "attempts-exhausted", 3)
        assert len(it.office.upstream.requests) == 3


@pytest.mark.parametrize("answer", [LOST, CUT, Answer(504)], ids=["no-response", "half-a-response", "504"])
async def test_nothing_is_sent_again_in_doubt(tmp_path: Path, answer: Answer) -> None:
    """The upstream may have done what it was told: in ten times all pauses it is not told again."""
    async with depot(tmp_path, route=accepting(**LONG)) as it:
        it.office.upstream.on("/charges", answer)
        await it.accept()
        await it.pass_time(10 * sum(SCHEDULE), HOUR / 2)
        assert (it.office.state, len(it.office.upstream.requests)) == (State.IN_DOUBT, 1)


async def test_a_gateway_that_dies_during_a_delivery(tmp_path: Path) -> None:
    """Its claim lapses into doubt, not back to what is due."""
    memory = Memory()
    async with RecordingUpstream() as upstream:
        upstream.on("/charges", Answer(hold=asyncio.Event()), Answer(201))
        async with depot(tmp_path / "a", memory=memory, behind=upstream) as it:
            await it.accept()
            await it.delivery.run_once()
            await upstream.wait_for_requests(1)
            # Renewals do not arrive, and neither does a final command.
            it.office.store.break_("renew", "abandon", fault=refused())
            memory.clock.advance(HOUR)
            async with depot(tmp_path / "b", memory=memory, behind=upstream) as other:
                await other.pass_time(HOUR, 600)
                assert (other.office.state, len(upstream.requests)) == (State.IN_DOUBT, 1)


# Outages of the upstream


async def test_an_outage_burns_nothing(tmp_path: Path) -> None:
    """However long it lasts, no answer counts and no request is given up; then each is delivered once, slowly first."""
    port = free_port()
    route = accepting(**LONG)
    async with depot(tmp_path, route=route, upstream={"url": f"http://127.0.0.1:{port}"}) as it:
        ids = await it.accept_many(40)
        await it.pass_time(2 * sum(SCHEDULE), 200)
        assert set(it.states()) == {State.ACCEPTED}
        assert {delivery.answers for each in ids if (delivery := it.record(each).delivery)} == {0}
        assert [fact.is_open for fact in it.office.told(BreakerChanged)][:1] == [True]
        tries = len(it.office.told(DeliveryAttempted))
        async with RecordingUpstream(port=port) as upstream:
            await it.pass_time(400, 400)
            # One is tried, and a second later there are two places.
            for bound in (1, 3, 7, 15, 31, 40):
                assert len(upstream.requests) <= bound
                await it.poll()
                await it.pass_time(1, 1)
            assert it.states() == [State.COMPLETED] * 40
            sent = [each.values("Idempotency-Key")[0] for each in upstream.requests]
            assert len(sent) == len(set(sent)) == 40
        # While it was down, hardly anything was tried.
        assert tries < 120


async def test_a_slow_request_after_an_outage(tmp_path: Path) -> None:
    """That it could be sent is known before its response: it keeps no others waiting."""
    port = free_port()
    async with depot(tmp_path, upstream={"url": f"http://127.0.0.1:{port}"}) as it:
        await it.accept_many(20)
        await it.pass_time(60, 5)
        hold = asyncio.Event()
        async with RecordingUpstream(port=port) as upstream:
            upstream.on("/charges", Answer(201, hold=hold), Answer(201))
            it.wait(400)
            await it.delivery.run_once()
            await upstream.wait_for_requests(1)
            assert not it.office.told(BreakerChanged)[-1].is_open
            for _ in range(6):
                it.wait(1)
                await it.delivery.run_once()
                await eventually(lambda: it.delivery.running == 1, what="the slow one alone runs")
            assert len(upstream.requests) == 20
            hold.set()
            await it.settled()
            assert it.states() == [State.COMPLETED] * 20


# The order


async def test_scopes_take_turns(tmp_path: Path) -> None:
    """The oldest comes first, but a scope with much to deliver does not hide another."""
    async with depot(tmp_path, route=accepting(delivery={"max_in_flight": 1})) as it:
        for tenant, key in (("t1", "a"), ("t1", "b"), ("t1", "c"), ("t2", "d")):
            await it.accept(key, tenant=tenant)
            it.office.pass_time(0.001)
        for _ in range(2):
            await it.poll()
        assert it.charges == [b"a", b"b"]
        async with depot(tmp_path / "wide", memory=it.office.memory, behind=it.office.upstream) as wide:
            await wide.poll()
        assert set(it.charges[2:]) == {b"c", b"d"}


@pytest.mark.parametrize(("count", "in_flight_max"), [(200, 1), (900, 1000)], ids=["few-places", "many-places"])
async def test_a_route_with_much_to_do_hides_no_other(tmp_path: Path, count: int, in_flight_max: int) -> None:
    """What is accepted last, on another route, is delivered in the second poll at the latest, however much is older;
    also where the first route has a place for whatever a search finds."""
    routes = [
        accepting(name="first", delivery={"max_in_flight": in_flight_max}),
        accepting(name="other", match={"path": "/other"}),
    ]
    async with depot(tmp_path, routes=routes) as it:
        await it.accept_many(count)
        request, _ = await it.accept("late", route=it.office.parts.routes[1])
        for _ in range(2):
            await it.poll()
        assert it.record(request.identity.operation_id).state is State.COMPLETED


async def test_no_more_than_places(tmp_path: Path) -> None:
    """What has no place stays accepted, and follows when a place is free."""
    async with depot(tmp_path, route=accepting(delivery={"max_in_flight": 2})) as it:
        hold = asyncio.Event()
        it.office.upstream.on("/charges", Answer(hold=hold))
        await it.accept_many(3)
        await it.delivery.run_once()
        await it.office.upstream.wait_for_requests(2)
        await it.delivery.run_once()
        it.delivery.deliver_accepted(*await it.accept("k9"))
        assert sorted(it.states()) == [State.ACCEPTED, State.ACCEPTED, State.CLAIMED, State.CLAIMED]
        hold.set()
        await it.settled()
        await it.poll()
        assert it.states() == [State.COMPLETED] * 4


async def test_the_store_says_what_is_due(tmp_path: Path) -> None:
    """Whatever a gateway believes: its claim is refused before that."""
    async with depot(tmp_path) as it:
        it.office.upstream.on("/charges", Answer(503), Answer(201))
        request, _ = await it.accept()
        await it.poll()
        snapshot = MemoryStore(it.office.memory).read_now(request.identity.operation_id)
        it.delivery.deliver_accepted(await it.keyed(), snapshot)
        await it.settled()
        assert (it.office.state, len(it.office.upstream.requests)) == (State.ACCEPTED, 1)


# Several gateways, and faults of the store


async def test_two_gateways_deliver_each_once(tmp_path: Path) -> None:
    """Both find all of them, and the claim decides."""
    memory = Memory()
    async with (
        RecordingUpstream() as upstream,
        depot(tmp_path / "a", memory=memory, behind=upstream) as one,
        depot(tmp_path / "b", memory=memory, behind=upstream) as two,
    ):
        await one.accept_many(30)
        for _ in range(4):
            await asyncio.gather(one.poll(), two.poll())
        assert one.states() == [State.COMPLETED] * 30
        assert sorted(one.charges) == sorted(f"k{n}".encode() for n in range(30))


async def test_a_dispatch_that_is_never_answered(tmp_path: Path) -> None:
    """Nothing is sent under it; once the store answers it is accepted again, and delivered."""
    async with depot(tmp_path) as it:
        await it.accept()
        it.office.store.break_("dispatch", fault=lost())
        await it.poll()
        assert (it.office.state, it.charges) == (State.CLAIMED, [])
        it.office.store.mend()
        await it.office.claiming.wait_pursuits_ended()
        assert it.office.state is State.ACCEPTED
        await it.pass_time(1, 1)
        assert (it.office.state, it.charges) == (State.COMPLETED, [b"k1"])


# What is not delivered


async def test_what_cannot_be_read_hides_nothing(tmp_path: Path) -> None:
    """However much of it is older than what can."""
    torn: list[UUID] = []

    class Torn(MemoryStore):
        async def read_kept(self, operation_id: UUID) -> SealedRequest | None:
            if operation_id in torn:
                raise Unreadable("a page of the disk is damaged")
            return await super().read_kept(operation_id)

    async with depot(tmp_path, store_on=Torn, route=accepting(delivery={"max_in_flight": 1})) as it:
        torn += await it.accept_many(30)
        it.office.pass_time(0.001)
        request, _ = await it.accept("late")
        for _ in range(31):
            await it.poll()
        assert it.record(request.identity.operation_id).state is State.COMPLETED


async def test_a_request_that_cannot_be_opened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is never sent; an operator finds it among the dead letters, and the cause in the log."""
    async with depot(tmp_path) as it:
        await it.accept(ring=KeyRing([EncryptionKey("lost", bytes(32))], bytes))
        await it.poll()
        assert (it.office.state, it.kept.reason, it.kept.answers) == (State.DEAD_LETTER, "unreadable", 0)
        assert it.charges == []
        assert "key 'lost', which is not configured" in caplog.text
        assert [fact.detail for fact in it.office.told(DeliveryAttempted)] == ["unreadable"]


async def test_orphans_hide_nothing(tmp_path: Path) -> None:
    """Of a route that accepts no more: neither what has its operation name nor the rest, and many of them are no reason
    to poll more often."""
    routes = [
        accepting(operation="pay"),
        accepting(name="refund", operation="pay", match={"path": "/refunds"}),
        accepting(name="other", match={"path": "/other"}),
    ]
    memory = Memory()
    async with depot(tmp_path / "before", memory=memory, routes=routes) as it:
        await it.accept_many(2500, route=it.office.parts.by_name["refund"])
    del routes[1]["accept"]
    async with depot(tmp_path / "after", memory=memory, routes=routes) as it:
        it.wait(1)
        living = [it.office.parts.by_name[name] for name in ("charge", "other")]
        ids = [(await it.accept("late", route=route))[0].identity.operation_id for route in living]
        for _ in range(10):
            await it.poll()
        assert [it.record(each).state for each in ids] == [State.COMPLETED] * 2
        it.office.store.said.clear()
        assert await it.poll() > 1
        assert list(it.office.store.said) == ["find_due"]


async def test_what_has_no_place_hides_nothing_of_its_name(tmp_path: Path) -> None:
    """However much waits for a service that is away, another route with its operation name delivers what it has."""
    nowhere = {"url": f"http://127.0.0.1:{free_port()}"}
    routes = [
        accepting(operation="pay", upstream=nowhere),
        accepting(name="refund", operation="pay", match={"path": "/refunds"}),
    ]
    async with depot(tmp_path, routes=routes) as it:
        charge, refund = it.office.parts.routes
        await it.accept_many(400, route=charge)
        await it.poll()
        request, _ = await it.accept("late", route=refund)
        await it.poll()
        assert it.record(request.identity.operation_id).state is State.COMPLETED


async def paused(it: Depot) -> MemoryStore:
    """Another process has paused the route, by this store."""
    store = MemoryStore(it.office.memory)
    await store.start()
    await store.cold.pause("shop", "charge", AUDIT)
    return store


async def test_a_pause(tmp_path: Path) -> None:
    """What is paused is delivered neither when it is due nor when it is accepted; the time does not count."""
    async with depot(tmp_path) as it:
        store = await paused(it)
        await it.accept("k1")
        await it.poll()
        it.delivery.deliver_accepted(*await it.accept("k2"))
        await it.settled()
        assert it.charges == []
        await store.cold.resume("shop", "charge", AUDIT)
        it.wait(6)
        await it.poll()
        assert sorted(it.charges) == [b"k1", b"k2"]


async def test_a_pause_from_before_the_start(tmp_path: Path) -> None:
    """What a gateway accepts before it has looked for pauses waits until it has."""
    async with depot(tmp_path) as it:
        store = await paused(it)
        it.delivery.deliver_accepted(*await it.accept("k1"))
        await it.poll()
        it.delivery.deliver_accepted(*await it.accept("k2"))
        await it.settled()
        assert it.charges == []
        await store.cold.resume("shop", "charge", AUDIT)
        await it.poll()
        assert sorted(it.charges) == [b"k1", b"k2"]


async def test_a_pause_while_nothing_has_a_place(tmp_path: Path) -> None:
    """While no place is free nothing is searched, so what is accepted after that waits until it is known again what is
    paused."""
    async with depot(tmp_path, route=accepting(delivery={"max_in_flight": 1})) as it:
        await it.poll()
        gate = it.office.store.stop_before("dispatch")
        it.delivery.deliver_accepted(*await it.accept("k1"))
        await gate.reached.wait()
        store = await paused(it)
        await it.delivery.run_once()
        gate.opened.set()
        await it.settled()
        it.delivery.deliver_accepted(*await it.accept("k2"))
        await it.poll()
        assert it.charges == [b"k1"]
        await store.cold.resume("shop", "charge", AUDIT)
        await it.poll()
        assert it.charges == [b"k1", b"k2"]


# The end of a gateway


async def test_a_drain_before_the_first_byte(tmp_path: Path) -> None:
    """What was not sent is postponed, and another gateway may deliver it at once."""
    async with silent_tls() as url, depot(tmp_path, upstream={"url": url, "connect_timeout": "20s"}) as it:
        await it.accept()
        await it.delivery.run_once()
        await eventually(lambda: it.office.state is State.CLAIMED)
        it.delivery.stop()
        assert await it.office.coordinator.drain(0) == Drained(recorded=1)
        assert (it.office.state, it.kept.answers) == (State.ACCEPTED, 0)
        assert it.kept.next_attempt_us == it.office.memory.clock()


async def test_a_stalled_loop_delivers_nothing(tmp_path: Path) -> None:
    """A gateway that stood still asks for nothing and claims nothing, until its loop is seen to run again."""
    async with depot(tmp_path) as it:
        await it.poll()
        accepted = await it.accept()
        it.office.pass_time(60)
        await it.poll()
        it.delivery.deliver_accepted(*accepted)
        assert (it.office.state, it.delivery.running) == (State.ACCEPTED, 0)
        it.wait(1)
        await it.poll()
        assert (it.office.state, it.charges) == (State.COMPLETED, [b"k1"])


async def test_nothing_begins_after_the_stop(tmp_path: Path) -> None:
    """Not even what is being read."""
    async with depot(tmp_path) as it:
        await it.accept()
        gate = it.office.store.stop_before("read_kept")
        await it.delivery.run_once()
        await gate.reached.wait()
        it.delivery.stop()
        gate.opened.set()
        await it.settled()
        await it.delivery.run_once()
        it.delivery.deliver_accepted(*await it.accept("k2"))
        assert (set(it.states()), it.charges) == ({State.ACCEPTED}, [])


# Doubt


PROBE: dict[str, Any] = {
    "path": "/charges/status?operation={operation_id}",
    "done": [{"status": [200]}],
    "never_happened": [{"status": [404]}],
    "settle": "31s",
}


async def recover(it: Depot, *, after_seconds: float = 0.0) -> None:
    """A pass of the background recovery, and the end of what it began."""
    it.wait(after_seconds)
    await it.office.parts.turns.run_once()
    await it.office.parts._recovery.run_once()
    await it.settled()


async def test_a_probe_that_finds_nothing(tmp_path: Path) -> None:
    """The request was promised to be delivered, and so it is, once."""
    route = accepting(recovery={"probe": PROBE})
    fast = {"answer_within": "1s", "response_timeout": "1s"}
    async with depot(tmp_path, route=route, upstream=fast) as it:
        it.office.upstream.on("/charges", LOST, Answer(201))
        it.office.upstream.on("/charges/status", Answer(404, effect=False))
        await it.accept()
        await it.poll()
        assert it.office.state is State.IN_DOUBT
        for _ in range(3):
            await recover(it, after_seconds=60)
        assert it.office.state is State.ACCEPTED
        await it.poll()
        posts = [each for each in it.office.upstream.requests if each.method == "POST"]
        assert (it.office.state, len(posts)) == (State.COMPLETED, 2)


async def test_resend(tmp_path: Path) -> None:
    """Where the upstream deduplicates, it gets the request again by itself; in the end it stays in doubt."""
    async with depot(tmp_path, route=accepting(recovery="resend", delivery={"max_answers": 3})) as it:
        it.office.upstream.on("/charges", LOST)
        await it.accept()
        await it.poll()
        for _ in range(20):
            await recover(it)
        assert len(it.office.upstream.requests) == 1, "before the pause"
        for _ in range(10):
            await recover(it, after_seconds=HOUR)
        tokens = [each.values("Idempotency-Fencing-Token")[0] for each in it.office.upstream.requests]
        assert (it.office.state, len(tokens), len(set(tokens))) == (State.IN_DOUBT, 3, 3)
        assert len(set(it.charges)) == 1


async def test_resend_after_an_outage(tmp_path: Path) -> None:
    """Attempts that sent nothing are none of those that may be made in doubt, however many there were."""
    port = free_port()
    route = accepting(recovery="resend", delivery={"max_answers": 2})
    async with depot(tmp_path, route=route, upstream={"url": f"http://127.0.0.1:{port}"}) as it:
        await it.accept()
        await it.pass_time(HOUR, 60)
        assert it.office.record.attempts > 2
        async with RecordingUpstream(port=port) as upstream:
            upstream.on("/charges", LOST, Answer(201))

            async def arrived() -> bool:
                it.wait(60)
                await it.poll()
                return len(upstream.requests) == 1

            await eventually(arrived)
            assert it.office.state is State.IN_DOUBT
            await recover(it, after_seconds=HOUR)
            assert (it.office.state, len(upstream.requests)) == (State.COMPLETED, 2)


async def test_no_resend_starts_after_the_deadline(tmp_path: Path) -> None:
    """What is in doubt then stays so: for whoever accepted it, a late effect is no better than none."""
    async with depot(tmp_path, route=accepting(recovery="resend", delivery={"deliver_within": "10m"})) as it:
        it.office.upstream.on("/charges", LOST, Answer(201))
        await it.accept(deliver_within=600)
        await it.poll()
        await recover(it, after_seconds=HOUR)
        assert (it.office.state, len(it.office.upstream.requests)) == (State.IN_DOUBT, 1)


async def test_resend_that_is_answered(tmp_path: Path) -> None:
    """Only a final response ends it: one that says nothing happened proves nothing about the first attempt."""
    async with depot(tmp_path, route=accepting(recovery="resend")) as it:
        it.office.upstream.on("/charges", LOST, Answer(503), Answer(401), Answer(201))
        await it.accept()
        await it.poll()
        for state in (State.IN_DOUBT, State.IN_DOUBT, State.COMPLETED):
            await recover(it, after_seconds=HOUR)
            assert it.office.state is state
        assert len(it.office.upstream.requests) == 4
