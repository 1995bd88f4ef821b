"""What operators decide about kept requests, judged on the model store, whose clock only the test moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest

from gateway.admin.inspection import full_json
from gateway.admin.operations import Bulk, Operations, dead_letters, listed
from gateway.admin.resolution import NoSuch, NothingHappened, Policies, Refusal
from gateway.core.delivery import Delivering
from gateway.core.operation import Audit, Command, Event, Result, State, microseconds
from gateway.store.base import Indefinite, NotApplied
from gateway.store.memory.epoch import Amnesia, memo_of
from gateway.store.operations import AuditEntry
from tests.admin.hand import AUDIT, CHARGE, LEASE_SECONDS, POLICIES, SETTLE_SECONDS, Desk, changed, declined
from tests.support.faulty_store import FaultyStore, lost, refused

BOB = Audit("bob", "credentials rotated")


def state(desk: Desk, operation_id: UUID) -> State:
    return desk.store.read_now(operation_id).state


async def desk_with_dead() -> tuple[Desk, UUID]:
    desk = Desk()
    return desk, await dead(desk)


async def dead(desk: Desk, key: str | None = None, reason: str = "unauthorized") -> UUID:
    return (await desk.kept(State.DEAD_LETTER, key=key, reason=reason)).identity.operation_id


async def test_two_operators_requeue_the_same_dead_letter() -> None:
    """One succeeds; the other is told who it was, while it waits and once it is under way."""
    desk, operation_id = await desk_with_dead()
    changed(await desk.operations.requeue(operation_id, AUDIT))
    desk.memory.clock.advance(60)
    late = declined(await desk.operations.requeue(operation_id, BOB))
    assert (late.reason, late.text) == (
        Refusal.STATE,
        "It is no dead letter: alice requeued it 1m ago (ticket 7). Its next attempt is due at 2027-01-15T08:00:00Z.",
    )
    desk.attempted(desk.known(operation_id), State.CLAIMED)
    assert declined(await desk.operations.requeue(operation_id, BOB)).text.startswith(
        "host:1:a is delivering it now, under token 3: alice requeued it 1m ago (ticket 7)."
    )
    assert [entry.who for entry in (await desk.operations.inspect(operation_id)).audits] == ["alice"]


async def test_two_operators_at_once() -> None:
    """The one whose command comes second is fenced, although it read a dead letter, and is told what happened."""
    desk, operation_id = await desk_with_dead()

    async def audits_and_then_first(operation_id: UUID) -> list[AuditEntry]:
        found = await desk.store.cold.audits(operation_id)
        if not found:
            changed(await desk.operations.requeue(operation_id, AUDIT))
        return found

    second = FaultyStore(desk.store)
    second.cold.audits = audits_and_then_first
    late = declined(await Operations(second, POLICIES).requeue(operation_id, BOB))
    assert late.text.startswith("It is no dead letter: alice requeued it 0s ago (ticket 7).")


@pytest.mark.parametrize("verb", ["requeue", "withdraw"])
async def test_a_command_whose_answer_was_lost(verb: str) -> None:
    """Given again it says that it was done, and does nothing twice, whatever became of the operation meanwhile."""
    desk, operation_id = await desk_with_dead()
    store = FaultyStore(desk.store)
    store.on(Event(verb), lost())
    decide = getattr(Operations(store, POLICIES, patience_seconds=20.0), verb)
    changed(await decide(operation_id, AUDIT))
    desk.memory.clock.advance(60)
    again = changed(await decide(operation_id, AUDIT))
    now = "accepted" if verb == "requeue" else "released"
    assert again.is_repeat
    assert again.text == (
        f"The same command was given already, at 2027-01-15T08:00:00Z (1m ago); the operation is {now} now."
    )
    assert len((await desk.operations.inspect(operation_id)).audits) == 1


async def test_a_requeue_that_is_delivered_before_its_answer_is_missed() -> None:
    """It was lost on its way, and a worker was quick: the command is done, and not refused."""
    desk, operation_id = await desk_with_dead()

    class Quick(FaultyStore):
        async def apply(self, command: Command) -> Result:
            result = await super().apply(command)
            record = result.snapshot.record
            if record is not None and record.state is State.ACCEPTED:
                desk.attempted(record, State.CLAIMED)
                raise Indefinite("the answer was lost")
            return result

    outcome = changed(await Operations(Quick(desk.store), POLICIES).requeue(operation_id, AUDIT))
    assert (outcome.is_repeat, outcome.text) == (
        False,
        "The same command was given already, at 2027-01-15T08:00:00Z (0s ago); the operation is claimed now.",
    )


async def test_a_requeue_that_did_not_help() -> None:
    """The same words requeue a letter that is dead again only for its token, or with another reason."""
    desk, operation_id = await desk_with_dead()
    changed(await desk.operations.requeue(operation_id, AUDIT))
    token = desk.attempted(desk.known(operation_id), State.DEAD_LETTER).token
    again = changed(await desk.operations.requeue(operation_id, AUDIT))
    assert again.is_repeat
    assert again.text.endswith(
        f"but the operation is a dead letter again. To do it once more, give another reason, or its token, {token}."
    )
    assert state(desk, operation_id) is State.DEAD_LETTER
    assert not changed(await desk.operations.requeue(operation_id, AUDIT, token=token)).is_repeat
    assert declined(await desk.operations.requeue(operation_id, BOB, token=1)).reason is Refusal.MOVED


async def test_withdrawn_and_sent_again() -> None:
    """A withdrawal is of the request that was kept then, not of one that is accepted under the same key later."""
    desk = Desk()
    before = await desk.kept(State.ACCEPTED)
    operation_id = before.identity.operation_id
    outcome = changed(await desk.operations.withdraw(operation_id, AUDIT))
    assert outcome.text.startswith("Withdrawn: its request is dropped, and nothing happened.")
    after = desk.known(operation_id)
    assert (after.state, after.delivery) == (State.RELEASED, None)
    assert await desk.store.cold.read_kept(operation_id) is None
    assert declined(await desk.operations.withdraw(operation_id, BOB)).text.startswith(
        "It waits for nothing: alice withdrew it 0s ago (ticket 7): nothing happened, and the next request"
    )
    desk.accepted(desk.claim("key-1", read_token=after.token))
    again = changed(await desk.operations.withdraw(operation_id, AUDIT))
    assert again.text.partition(", but ")[2].startswith("the operation was accepted again.")
    assert state(desk, operation_id) is State.ACCEPTED


@pytest.mark.parametrize(
    ("state_", "text"),
    [
        (State.CLAIMED, "host:1:a is executing it now, under token 1. Wait for the outcome."),
        (State.IN_DOUBT, "It is in doubt: it was sent, and may have had its effect. Find that out, and resolve it."),
        (State.COMPLETED, "It completed at 2027-01-15T08:00:00Z (0s ago), with status 201; there is nothing to "),
        (State.RELEASED, "It waits for nothing: nothing happened, and the next request with its key runs."),
    ],
    ids=lambda value: value.value if isinstance(value, State) else "",
)
async def test_nothing_to_decide(state_: State, text: str) -> None:
    """What is not kept, or may have had its effect, is left as it is."""
    desk = Desk()
    before = await desk.in_state(state_)
    for decide in (desk.operations.requeue, desk.operations.withdraw):
        outcome = declined(await decide(before.identity.operation_id, AUDIT))
        assert (outcome.reason, outcome.text[: len(text)]) == (Refusal.STATE, text)
    assert desk.record(before.identity.operation_id) == before


async def test_never_happened_delivers_what_is_kept() -> None:
    """A doubt about a kept request that came to nothing ends in another delivery; asked before, it says so."""
    desk = Desk()
    operation_id = (await desk.kept(State.IN_DOUBT)).identity.operation_id
    desk.memory.clock.advance(LEASE_SECONDS + SETTLE_SECONDS)
    next_ = full_json(await desk.operations.inspect(operation_id))["next"]
    assert "That delivers its kept request again; with --drop" in next_
    tried = changed(await desk.operations.resolve(operation_id, NothingHappened(), AUDIT, is_dry_run=True))
    assert "Its kept request would be delivered again" in tried.text
    outcome = changed(await desk.operations.resolve(operation_id, NothingHappened(), AUDIT))
    assert outcome.text == (
        "Resolved: nothing happened. Its kept request is delivered again, until 2027-01-16T08:00:00Z (in 23h 49m)."
    )
    assert state(desk, operation_id) is State.ACCEPTED
    assert await desk.store.cold.read_kept(operation_id) is not None
    again = changed(await desk.operations.resolve(operation_id, NothingHappened(), AUDIT))
    assert again.is_repeat


async def test_never_happened_too_late_to_be_delivered() -> None:
    """Where its time is over it is a dead letter, and the operator is told."""
    desk = Desk()
    operation_id = (await desk.kept(State.IN_DOUBT)).identity.operation_id
    desk.memory.clock.advance(2 * 86_400)
    outcome = changed(await desk.operations.resolve(operation_id, NothingHappened(), AUDIT))
    assert outcome.text.endswith("its time for that ended at 2027-01-16T08:00:00Z, so it is a dead letter.")
    assert state(desk, operation_id) is State.DEAD_LETTER


@pytest.mark.parametrize("state_", [State.ACCEPTED, State.DEAD_LETTER], ids=str)
async def test_what_is_kept_is_neither_resolved_nor_purged_nor_erased(state_: State) -> None:
    """Its request is dropped by a withdrawal and by nothing else, and every refusal says what to do."""
    desk = Desk()
    before = await desk.kept(state_)
    operation_id = before.identity.operation_id
    for outcome in (
        await desk.operations.resolve(operation_id, NothingHappened(), AUDIT, is_forced=True),
        await desk.operations.purge(operation_id, AUDIT),
        await desk.operations.erase(operation_id, AUDIT, is_sure=True),
    ):
        assert declined(outcome).reason is Refusal.STATE
        assert "withdraw it" in outcome.text
    assert desk.record(operation_id) == before


async def test_a_store_that_lost_its_memory() -> None:
    """What was accepted before the loss may have been sent since: nobody calls it off before the loss is accepted."""
    desk, operation_id = await desk_with_dead()
    lost_ = Amnesia(until_us=desk.memory.clock() + microseconds(3600), why="a failover", beyond=desk.memory.token)
    await desk.store.cold.begin_epoch(memo_of(lost_), lost_.beyond)
    for decide in (desk.operations.withdraw, desk.operations.requeue):
        outcome = declined(await decide(operation_id, AUDIT))
        assert outcome.text.startswith("The store lost its memory: a failover.")
    await desk.operations.accept_loss(AUDIT)
    changed(await desk.operations.withdraw(operation_id, AUDIT))


async def test_without_a_route() -> None:
    """A requeue that no gateway of this configuration will deliver says so."""
    other = replace(CHARGE, name="refund", operation="refund")
    desk = Desk(Policies("shop", [other]))
    outcome = changed(await desk.operations.requeue(await dead(desk), AUDIT))
    assert outcome.notes[0].startswith("No route of this configuration delivers this operation")


async def test_what_waits_on_a_route_that_accepts_no_more() -> None:
    """`inspect` says that nobody delivers it, until when it waits, and what to do."""
    desk = Desk(Policies("shop", [CHARGE], delivering=Delivering(frozenset(), frozenset(("charge",)), frozenset())))
    operation_id = (await desk.kept(State.ACCEPTED)).identity.operation_id
    said = full_json(await desk.operations.inspect(operation_id))["next"]
    assert said == (
        "No route of this configuration delivers it. Its request is kept, and nothing of it was done; at "
        "2027-01-16T08:00:00Z (in 1d) it becomes a dead letter. To deliver it, give route charge back, with its "
        f"`accept`. To call it off: withdraw {operation_id} --why TEXT."
    )


async def test_a_pause_of_a_route_that_is_gone() -> None:
    """It can be ended; a name that is nothing is an error that names the routes."""
    desk = Desk(Policies("shop", [replace(CHARGE, name="refund", operation="refund")]))
    await desk.store.start()
    with pytest.raises(NoSuch, match="there is no route 'charge'; the configuration has refund"):
        await desk.operations.pause("charge", AUDIT)
    await desk.store.cold.pause("shop", "charge", AUDIT)
    assert await desk.operations.resume("charge", AUDIT) == (
        "Resumed: charge (no route of this configuration) is delivered again within seconds."
    )


# -- many -------------------------------------------------------------------------------------------------------------


class Watch:
    """A clock, and a sleep that moves it; `pauses` are its sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


async def run(bulk: Bulk, desk: Desk, audit: Audit = AUDIT, seconds_max: float | None = None) -> Watch:
    watch = Watch()
    async for _ in bulk.run(desk.operations, audit, seconds_max=seconds_max, clock=watch.clock, sleep=watch.sleep):
        pass
    return watch


async def test_many_at_a_rate() -> None:
    """Those that match are requeued up to the limit, evenly; the rest is counted, and given again it goes on."""
    desk = Desk()
    for _ in range(5):
        await dead(desk)
    others = [await dead(desk, reason="unreadable"), (await desk.kept(State.ACCEPTED)).identity.operation_id]
    wanted, rate = dead_letters(frozenset(("charge",)), "unauthorized", 0, 3), 50
    bulk = await listed(desk.operations, wanted, rate)
    watch = await run(bulk, desk)
    assert str(bulk) == "3 requeued, 0 skipped, 2 left"
    assert watch.pauses == pytest.approx([0.02, 0.02])
    bulk = await listed(desk.operations, wanted, rate)
    await run(bulk, desk)
    assert str(bulk) == "2 requeued, 0 skipped, 0 left"
    assert Counter(record.state for record in desk.memory.records.values()) == {State.ACCEPTED: 6, State.DEAD_LETTER: 1}
    assert state(desk, others[0]) is State.DEAD_LETTER


async def test_many_twice() -> None:
    """What is a dead letter again is not requeued by the same command, but by one with another reason."""
    desk, operation_id = await desk_with_dead()
    wanted, rate = dead_letters(None, "unauthorized", 0, 10), 1000
    await run(await listed(desk.operations, wanted, rate), desk)
    record = desk.known(operation_id)
    desk.attempted(record, State.DEAD_LETTER)
    for audit, said in ((AUDIT, "0 requeued, 1 skipped, 0 left"), (BOB, "1 requeued, 0 skipped, 0 left")):
        bulk = await listed(desk.operations, wanted, rate)
        await run(bulk, desk, audit)
        assert str(bulk) == said


async def test_age_is_since_it_died() -> None:
    """An operation that was accepted long ago and died a moment ago is not older than an hour."""
    desk = Desk()
    waiting = await desk.kept(State.ACCEPTED)
    old = await dead(desk)
    desk.memory.clock.advance(3600)
    desk.attempted(waiting, State.DEAD_LETTER)
    bulk = await listed(desk.operations, dead_letters(None, None, microseconds(3600), 10), 1000)
    assert bulk.operation_ids == [old]


async def test_many_for_a_bounded_time() -> None:
    """No further one begins after the time that it may take."""
    desk = Desk()
    for _ in range(5):
        await dead(desk)
    bulk = await listed(desk.operations, dead_letters(None, "unauthorized", 0, 10), 1)
    await run(bulk, desk, seconds_max=2.0)
    assert str(bulk) == "2 requeued, 0 skipped, 3 left"


async def test_somebody_was_faster() -> None:
    """Of two bulk requeues at once, each operation is requeued by one of them."""
    desk = Desk()
    for _ in range(4):
        await dead(desk)
    wanted, rate = dead_letters(None, "unauthorized", 0, 10), 1000
    first, second = await listed(desk.operations, wanted, rate), await listed(desk.operations, wanted, rate)
    await run(first, desk)
    await run(second, desk, BOB)
    assert (str(first), str(second)) == ("4 requeued, 0 skipped, 0 left", "0 requeued, 4 skipped, 0 left")


async def test_a_store_that_goes_away_meanwhile() -> None:
    """What was done stays counted, and the rest is left."""
    desk = Desk()
    for _ in range(3):
        await dead(desk)
    store = FaultyStore(desk.store)
    bulk = await listed(desk.operations, dead_letters(None, "unauthorized", 0, 10), 1000)
    run_ = bulk.run(Operations(store, POLICIES, patience_seconds=0.0), AUDIT)
    await anext(run_)
    store.on(Event.REQUEUE, refused())
    with pytest.raises(NotApplied):
        await anext(run_)
    assert str(bulk) == "1 requeued, 0 skipped, 2 left"
