"""What operators do to records, judged on the model store, whose clock only the test moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from uuid import UUID, uuid4

import pytest

from gateway.admin.listing import Bulk, dead_letters, listed
from gateway.admin.operations import Malformed, Operations
from gateway.admin.resolution import Happened, NothingHappened, Policies, Refusal, RoutePolicy
from gateway.admin.view import full_json
from gateway.config.route import PrincipalAuth, TokenIssuer
from gateway.core.delivery import Delivering
from gateway.core.identity.body import parse_pointer
from gateway.core.identity.caller import claims_value
from gateway.core.identity.key import (
    BodyPart,
    ClientCertificateScope,
    ComposedKey,
    ComposedScope,
    ForwardAuthScope,
    HeaderKey,
    HeaderScope,
    JwtScope,
    Key,
    Scope,
    derive_operation_id,
)
from gateway.core.message import IndexedHeaders, ResponseHead
from gateway.core.operation import (
    Audit,
    Command,
    Complete,
    Event,
    Requeue,
    Result,
    Snapshot,
    State,
    Takeover,
    microseconds,
)  # fmt: skip
from gateway.core.outcome import KeepPolicy
from gateway.store.base import Indefinite, NotApplied
from gateway.store.memory.epoch import Amnesia, memo_of
from gateway.store.operations import AuditEntry
from tests.admin.hand import (
    AUDIT,
    CHARGE,
    CREATED,
    LEASE_SECONDS,
    POLICIES,
    RESPONSE,
    SETTLE_SECONDS,
    TREATMENT,
    Desk,
    changed,
    declined,
)  # fmt: skip
from tests.support.faulty_store import Fault, FaultyStore, dropped, lost, refused
from tests.support.house import NO_JOURNALS
from tests.support.issuer import signing_key

CREATED_ONCE = Happened(CREATED, b"once")


def faulty(desk: Desk, event: Event, fault: Fault) -> FaultyStore:
    store = FaultyStore(desk.store)
    store.on(event, fault)
    return store


async def desk_in(state: State, policies: Policies = POLICIES, *, settled: bool = False) -> tuple[Desk, UUID]:
    """A desk with an operation in this state. `settled`: no request of it can arrive any more."""
    desk = Desk(policies)
    record = await desk.in_state(state)
    if settled:
        desk.memory.clock.advance(LEASE_SECONDS + SETTLE_SECONDS)
    return desk, record.identity.operation_id


async def audits(desk: Desk, operation_id: UUID) -> list[AuditEntry]:
    return await desk.operations.audits(operation_id)


async def test_never_happened_is_not_known_early() -> None:
    """Until the settle time after the last attempt is over it is refused with the time, and force is recorded."""
    desk, operation_id = await desk_in(State.IN_DOUBT)
    desk.memory.clock.advance(SETTLE_SECONDS - 1)
    early = declined(await desk.operations.resolve(operation_id, NothingHappened(), AUDIT))
    assert early.reason is Refusal.EARLY
    assert early.text == (
        "A request of the last attempt may still arrive until 2027-01-15T08:10:00Z (for 1s more): that nothing "
        "happened cannot be known before. Wait until then: said too early, it may run twice."
    )
    for seconds, why in ((0, "ticket 7 [forced: early]"), (LEASE_SECONDS + SETTLE_SECONDS, "ticket 7")):
        # What was not needed is not written down.
        desk, operation_id = await desk_in(State.IN_DOUBT)
        desk.memory.clock.advance(seconds)
        changed(await desk.operations.resolve(operation_id, NothingHappened(), AUDIT, is_forced=True))
        assert [entry.why for entry in await audits(desk, operation_id)] == [why]


@pytest.mark.parametrize(
    ("status", "said", "body"),
    [
        (503, "nothing certain about what happened", b""),
        (429, "that nothing happened", b""),
        (409, "nothing certain about what happened", b'{"title":"A request is outstanding for this Idempotency-Key"}'),
    ],
    ids=["503", "429", "outstanding"],
)
async def test_answer_that_ends_nothing(status: int, said: str, body: bytes) -> None:
    """A response that the route would not record is refused; force records it all the same."""
    desk, operation_id = await desk_in(State.IN_DOUBT)
    ruling = Happened(ResponseHead(status, b"", IndexedHeaders()), body)
    outcome = declined(await desk.operations.resolve(operation_id, ruling, AUDIT))
    assert outcome.reason is Refusal.RESPONSE
    assert outcome.text.startswith(f"On route charge a response with status {status} says {said}; if recorded,")
    changed(await desk.operations.resolve(operation_id, ruling, AUDIT, is_forced=True))
    response = desk.known(operation_id).response
    assert response is not None
    assert response.status == status


# Of what can not be decided so: what it is, or what to do instead.
OTHERWISE = {
    (
        "resolve",
        State.CLAIMED,
    ): "Wait for its response; when its lease ends without one, in 30s unless renewed",
    ("resolve", State.COMPLETED): "It completed already, at 2027-01-15T08:00:00Z (0s ago), with status 201; there is",
    ("resolve", State.RELEASED): "It is known already that nothing happened; the next request with this key runs.",
    ("purge", State.IN_DOUBT): "Doubt cannot be purged: resolve it.",
    ("purge", State.RELEASED): "To forget the key as well, erase it.",
    ("erase", State.IN_DOUBT): "doubt cannot be erased: resolve it first.",
    ("erase", State.COMPLETED): "It still has a response: purge it first.",
    ("erase", State.DEAD_LETTER): "Its request is kept, to be delivered: withdraw it first.",
    ("requeue", State.CLAIMED): "host:1:a is executing it now, under token 1. Wait for the outcome.",
    ("requeue", State.IN_DOUBT): "it was sent, and may have had its effect. Find that out, and resolve it.",
    ("withdraw", State.TOMBSTONE): "(0s ago), with status 201; there is nothing to withdraw.",
}


@pytest.mark.parametrize(("verb", "state"), OTHERWISE, ids=lambda value: str(getattr(value, "value", value)))
async def test_nothing_to_do(desk: Desk, verb: str, state: State) -> None:
    """What is in another state is left as it is, however sure the operator is, and the text says what it is."""
    is_kept = state in (State.ACCEPTED, State.DEAD_LETTER)
    before = await (desk.kept(state) if is_kept else desk.in_state(state))
    operation_id = before.identity.operation_id
    calls = {
        "resolve": [
            partial(desk.operations.resolve, operation_id, ruling, AUDIT, is_forced=True)
            for ruling in (CREATED_ONCE, NothingHappened())
        ],
        "erase": [partial(desk.operations.erase, operation_id, AUDIT, is_sure=is_sure) for is_sure in (True, False)],
    }
    for call in calls.get(verb) or [partial(getattr(desk.operations, verb), operation_id, AUDIT)]:
        outcome = declined(await call())
        assert outcome.reason is Refusal.STATE
        assert OTHERWISE[verb, state] in outcome.text
    assert desk.record(operation_id) == before
    assert await audits(desk, operation_id) == []


async def test_the_id_of_a_decision_shows_no_guess() -> None:
    """With a secret it is keyed: nobody with the table alone can compute it. A rotation changes nothing."""
    clear, keyed, rotated = (Policies("shop", [CHARGE], decision_secrets=each) for each in ((), (b"a",), (b"b", b"a")))
    ids = []
    for policies in (clear, keyed, rotated):
        desk = Desk(policies)
        operation_id = (await desk.in_state(State.IN_DOUBT, key="k")).identity.operation_id
        ids.append(changed(await desk.operations.resolve(operation_id, CREATED_ONCE, AUDIT)).snapshot.record)
    assert len({record.resolution_id for record in ids if record is not None}) == 3
    desk, operation_id = await desk_in(State.IN_DOUBT, keyed)
    changed(await desk.operations.resolve(operation_id, CREATED_ONCE, AUDIT))
    later = Operations(desk.store, rotated, NO_JOURNALS, patience_seconds=0.0)
    again = changed(await later.resolve(operation_id, CREATED_ONCE, AUDIT))
    assert again.text.startswith("The same command has resolved it already")


async def test_the_same_command_again() -> None:
    """Given again, a command is recognised; any other one about the same doubt is told that it came too late."""
    desk, operation_id = await desk_in(State.IN_DOUBT)
    changed(await desk.operations.resolve(operation_id, CREATED_ONCE, AUDIT))
    again = changed(await desk.operations.resolve(operation_id, CREATED_ONCE, AUDIT))
    assert again.text.startswith("The same command has resolved it already, at 2027-01-15T08:00:00Z (0s ago)")
    for ruling, audit in (
        (Happened(CREATED, b"twice"), AUDIT),
        (NothingHappened(), AUDIT),
        (CREATED_ONCE, Audit("bob", AUDIT.why)),
    ):
        late = declined(await desk.operations.resolve(operation_id, ruling, audit))
        assert late.text.startswith("It was resolved already, at 2027-01-15T08:00:00Z")
    assert len(await audits(desk, operation_id)) == 1


class Meddled(FaultyStore):
    """A store on which something happens right after the record was read."""

    meddle: Callable[[Snapshot], object]

    async def read(self, operation_id: UUID) -> Snapshot:
        snapshot = await super().read(operation_id)
        self.meddle(snapshot)
        return snapshot


async def test_fenced_when_somebody_was_faster(desk: Desk) -> None:
    """What happened between the look and the word wins: a late response, or a takeover."""
    record = await desk.in_state(State.IN_DOUBT)
    operation_id, store = record.identity.operation_id, Meddled(desk.store)
    operations = Operations(store, POLICIES, NO_JOURNALS)
    takeover = Takeover(operation_id, record.token, uuid4(), "host:2:b", microseconds(LEASE_SECONDS))

    def take_over(snapshot: Snapshot) -> None:
        desk.say(takeover)
        desk.memory.clock.advance(LEASE_SECONDS)

    store.meddle = take_over
    assert declined(await operations.resolve(operation_id, CREATED_ONCE, AUDIT)).reason is Refusal.MOVED

    answer = Complete(operation_id, 2, takeover.attempt_id, RESPONSE, TREATMENT.replay_us, TREATMENT.remember_us)
    store.meddle = lambda snapshot: desk.say(answer)
    late = declined(await operations.resolve(operation_id, CREATED_ONCE, AUDIT))
    assert late.text.startswith("It completed already, at ")
    assert (await operations.inspect(operation_id)).audits == ()


async def test_lost_answers_of_the_store() -> None:
    """A change whose response is lost is said again and done once, whether it had taken effect or not. Without any
    response the operator is told that it is not known, and with a refusal that nothing was changed."""
    for fault in (lost(), dropped()):
        desk, operation_id = await desk_in(State.IN_DOUBT, settled=True)
        store = faulty(desk, Event.DISPROVE, fault)
        changed(await Operations(store, POLICIES, NO_JOURNALS).resolve(operation_id, NothingHappened(), AUDIT))
        assert len(await audits(desk, operation_id)) == 1
    desk, operation_id = await desk_in(State.TOMBSTONE)
    changed(
        await Operations(faulty(desk, Event.ERASE, lost()), POLICIES, NO_JOURNALS).erase(
            operation_id, AUDIT, is_sure=True
        )
    )

    desk, operation_id = await desk_in(State.IN_DOUBT, settled=True)
    store = faulty(desk, Event.DISPROVE, lost())
    with pytest.raises(Indefinite, match="Give the same command again to find out; it is not done twice"):
        await Operations(store, POLICIES, NO_JOURNALS, patience_seconds=0.0).resolve(
            operation_id, NothingHappened(), AUDIT
        )
    again = await desk.operations.resolve(operation_id, NothingHappened(), AUDIT)
    assert changed(again).text.startswith("The same command has resolved it already")
    desk, operation_id = await desk_in(State.COMPLETED)
    with pytest.raises(NotApplied):
        await Operations(faulty(desk, Event.PURGE, refused()), POLICIES, NO_JOURNALS).purge(operation_id, AUDIT)


@pytest.mark.parametrize(("bytes_max", "body"), [(1000, b"x" * 1001), (0, b"")], ids=["long", "none is stored"])
async def test_long_body_and_declared_retention(bytes_max: int, body: bytes) -> None:
    """A body over the route's limit is not kept, and the service's own retention counts, as for any response."""
    treatment = replace(TREATMENT, keep=KeepPolicy(body_bytes_max=bytes_max))
    desk, operation_id = await desk_in(State.IN_DOUBT, Policies("shop", [replace(CHARGE, treatment=treatment)]))
    head = ResponseHead(200, b"OK", IndexedHeaders(((b"Idempotency-Retention", b"10000"),)))
    outcome = changed(await desk.operations.resolve(operation_id, Happened(head, body), AUDIT))
    assert "response-not-stored" in outcome.notes[0]
    record = desk.known(operation_id)
    assert record.response is not None
    assert (record.response.body, record.response.headers) == (None, ())
    assert record.replay_until_us == record.remember_until_us == desk.memory.clock() + microseconds(10_000)


def route(name: str, operation: str, seconds: float) -> RoutePolicy:
    times = microseconds(seconds)
    treatment = replace(TREATMENT, replay_us=times, remember_us=times, settle_us=times)
    return RoutePolicy(name, operation, CHARGE.key, CHARGE.scope, treatment)


async def test_route_that_is_gone() -> None:
    """A record of a renamed route is treated as those of its operation, that of a removed one as carefully as any."""
    renamed = Policies("shop", [route("pay", "charge", 10), route("other", "other", 99)])
    desk = Desk(renamed)
    record = await desk.in_state(State.IN_DOUBT)
    assert renamed.treatment_of(record) == route("pay", "charge", 10).treatment
    outcome = changed(await desk.operations.resolve(record.identity.operation_id, CREATED_ONCE, AUDIT))
    assert outcome.notes[0].startswith("Its route charge is not in the configuration")

    removed = Policies("shop", [route("a", "a", 10), route("b", "b", 99)])
    treatment = removed.treatment_of(record)
    assert (treatment.replay_us, treatment.settle_us, treatment.status) == (microseconds(99), microseconds(99), None)
    # What only has the name of its own says nothing of it.
    taken = Policies("shop", [route("charge", "refund", 10), route("pay", "charge", 99)])
    assert taken.treatment_of(record) == route("pay", "charge", 99).treatment


async def test_retired_answer_cannot_be_purged() -> None:
    """A response whose window is over is gone already. Of one that is purged, memories that learn of nothing are
    named."""
    desk, operation_id = await desk_in(State.COMPLETED)
    unheard = Operations(desk.store, POLICIES, NO_JOURNALS, cache_seconds=30.0)
    (note,) = changed(await unheard.purge(operation_id, AUDIT)).notes
    assert note == "Running gateways may reply from their cache for 30 s more."
    desk, operation_id = await desk_in(State.COMPLETED)
    desk.memory.clock.advance(3600)
    outcome = declined(await desk.operations.purge(operation_id, AUDIT))
    assert outcome.text.startswith("Its response is not replayed any more, and will be deleted by itself;")


def test_identify_by_what_would_be_verified() -> None:
    """An operator's word counts: a token may have expired, and the principal is a header. A certificate has no word."""
    issuer = TokenIssuer(issuer="https://a.example", audience="api", keys="discover", claims=("sub",))
    asked = PrincipalAuth(url="http://127.0.0.1:1/", principal="X-User-Id")
    jwt, principal = JwtScope((issuer,)), ForwardAuthScope(asked, b"X-User-Id")
    policies = [
        RoutePolicy(name, name, HeaderKey(), scope, TREATMENT)
        for name, scope in (("jwt", jwt), ("principal", principal), ("both", ComposedScope((jwt, principal))))
    ]
    certificate = RoutePolicy("certificate", "certificate", HeaderKey(), ClientCertificateScope("san"), TREATMENT)
    operations = Desk(Policies("shop", [*policies, certificate])).operations
    key, user = (b"Idempotency-Key", b"abc"), (b"X-User-Id", b"u1")
    token = (b"Authorization", b"Bearer " + signing_key().sign({"iss": issuer.issuer, "sub": "u1", "exp": 1}).encode())
    subject = claims_value(issuer, {"sub": "u1"})
    assert isinstance(subject, bytes)
    values = {jwt: subject, principal: principal.value_of(b"u1")}
    for policy in policies:
        scope = policy.scope.find_scope({}, None, values)
        assert isinstance(scope, Scope)
        found = HeaderKey().find_key(IndexedHeaders((key,)).by_name, None)
        assert isinstance(found, Key)
        expected = derive_operation_id("shop", policy.operation, scope.digest, found.digest)
        assert operations.identify(policy.name, (key, user, token), None) == expected
    for name, headers in (("jwt", (key,)), ("principal", (key, token)), ("certificate", (key, user, token))):
        with pytest.raises(Malformed, match="give the id of the operation"):
            operations.identify(name, headers, None)


@pytest.mark.parametrize(
    ("name", "headers", "text"),
    [
        ("pay", ((b"X-Tenant", b"t1"),), "there is no route 'pay'; the configuration has body, charge"),
        ("charge", ((b"X-Tenant", b"t1"),), "these headers have no key for route charge"),
        ("charge", ((b"Idempotency-Key", b"a"),), "the caller of route charge is not identified: X-Tenant is missing."),
        ("charge", ((b"Idempotency-Key", b"a b"),), "Idempotency-Key contains a space at position 2."),
        ("body", (), "the key of route body is in the body of the request: give that too"),
    ],
    ids=["route", "key", "scope", "fault", "body"],
)
def test_cannot_identify(name: str, headers: tuple[tuple[bytes, bytes], ...], text: str) -> None:
    """What is missing is named."""
    scope = ComposedScope((HeaderScope(b"X-Tenant", ()), HeaderScope(b"X-User", None)))
    body = RoutePolicy("body", "body", ComposedKey((BodyPart(parse_pointer("/id")),)), scope, TREATMENT)
    operations = Desk(Policies("shop", [CHARGE, body])).operations
    with pytest.raises(Malformed) as caught:
        operations.identify(name, headers, None)
    assert str(caught.value) == text
    both = ((b"X-Tenant", b"t1"), (b"X-User", b"u"))
    assert operations.identify("body", both, b'{"id": 1}') == operations.identify("body", both, b'{"id": "1"}')


async def test_an_operation_of_another_service() -> None:
    """What shares the store and the names of ours is shown, and not resolved by whoever cannot know how to treat it."""
    desk, operation_id = await desk_in(State.IN_DOUBT, Policies("books", [CHARGE]), settled=True)
    for ruling in (NothingHappened(), CREATED_ONCE):
        outcome = declined(await desk.operations.resolve(operation_id, ruling, AUDIT, is_forced=True))
        assert outcome.reason is Refusal.SERVICE
    for state_ in (State.COMPLETED, State.TOMBSTONE):
        # Its copies may be where our configuration does not reach.
        other = (before := await desk.in_state(state_)).identity.operation_id
        for refusal in (
            await desk.operations.purge(other, AUDIT),
            await desk.operations.erase(other, AUDIT, is_sure=True),
        ):
            assert declined(refusal).reason is Refusal.SERVICE
        assert desk.record(other) == before
    inspected = await desk.operations.inspect(operation_id)
    assert inspected.treatment is None
    assert full_json(inspected)["next"].startswith("It is an operation of another service that shares the store.")


BOB = Audit("bob", "credentials rotated")


def state(desk: Desk, operation_id: UUID) -> State:
    return desk.store.read_now(operation_id).state


async def desk_with_dead() -> tuple[Desk, UUID]:
    desk = Desk()
    return desk, await dead(desk)


async def dead(desk: Desk, key: str | None = None, reason: str = "unauthorized") -> UUID:
    return (await desk.kept(State.DEAD_LETTER, key=key, reason=reason)).identity.operation_id


async def test_two_operators_at_once() -> None:
    """The one whose command comes second is fenced, although it read a dead letter, and is told what happened, while it
    waits and once it is under way."""
    desk, operation_id = await desk_with_dead()
    second = Meddled(desk.store)
    requeue = Requeue(operation_id, desk.known(operation_id).token, uuid4(), TREATMENT.deliver_within_us, AUDIT)
    second.meddle = lambda _: desk.say(requeue) if state(desk, operation_id) is State.DEAD_LETTER else None
    late = declined(await Operations(second, POLICIES, NO_JOURNALS).requeue(operation_id, BOB))
    assert late.text == (
        "It is no dead letter: alice requeued it 0s ago (ticket 7). Its next attempt is due at 2027-01-15T08:00:00Z."
    )
    desk.attempted(desk.known(operation_id), State.CLAIMED)
    assert declined(await desk.operations.requeue(operation_id, BOB)).text.startswith(
        "host:1:a is delivering it now, under token 3: alice requeued it 0s ago (ticket 7)."
    )


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

    outcome = changed(await Operations(Quick(desk.store), POLICIES, NO_JOURNALS).requeue(operation_id, AUDIT))
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


async def test_withdrawn_and_sent_again(desk: Desk) -> None:
    """A withdrawal is of the request that was kept then, not of one that is accepted under the same key later."""
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


async def test_never_happened_too_late_to_be_delivered(desk: Desk) -> None:
    """Where its time is over it is a dead letter, and the operator is told."""
    operation_id = (await desk.kept(State.IN_DOUBT)).identity.operation_id
    desk.memory.clock.advance(2 * 86_400)
    outcome = changed(await desk.operations.resolve(operation_id, NothingHappened(), AUDIT))
    assert outcome.text.endswith("its time for that ended at 2027-01-16T08:00:00Z, so it is a dead letter.")
    assert state(desk, operation_id) is State.DEAD_LETTER


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
    """Of what no gateway of this configuration delivers, `inspect` says so, until when it waits, and what to do, and a
    requeue says so too. A pause of its route can be ended."""
    desk = Desk(Policies("shop", [CHARGE], delivering=Delivering(frozenset(), frozenset(("charge",)), frozenset())))
    operation_id = (await desk.kept(State.ACCEPTED)).identity.operation_id
    said = full_json(await desk.operations.inspect(operation_id))["next"]
    for words in (
        "No route of this configuration delivers it. Its request is kept, and nothing of it was done",
        "at 2027-01-16T08:00:00Z (in 1d) it becomes a dead letter.",
        f"give route charge back, with its `accept`. To call it off: withdraw {operation_id} --why TEXT.",
    ):
        assert words in said
    desk = Desk(Policies("shop", [replace(CHARGE, name="refund", operation="refund")]))
    outcome = changed(await desk.operations.requeue(await dead(desk), AUDIT))
    assert outcome.notes[0].startswith("No route of this configuration delivers this operation")
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


async def test_many_at_a_rate(desk: Desk) -> None:
    """Those that match are requeued up to the limit, evenly; the rest is counted, and given again it goes on."""
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


async def test_many_by_two_and_for_a_bounded_time(desk: Desk) -> None:
    """Of two at once, each is requeued by one of them; no further one begins after the time that it may take."""
    for _ in range(5):
        await dead(desk)
    wanted = dead_letters(None, "unauthorized", 0, 10)
    first, second = await listed(desk.operations, wanted, 1), await listed(desk.operations, wanted, 1000)
    await run(first, desk, seconds_max=2.0)
    await run(second, desk, BOB)
    assert (str(first), str(second)) == ("2 requeued, 0 skipped, 3 left", "3 requeued, 2 skipped, 0 left")


async def test_age_is_since_it_died(desk: Desk) -> None:
    """An operation that was accepted long ago and died a moment ago is not older than an hour."""
    waiting = await desk.kept(State.ACCEPTED)
    old = await dead(desk)
    desk.memory.clock.advance(3600)
    desk.attempted(waiting, State.DEAD_LETTER)
    bulk = await listed(desk.operations, dead_letters(None, None, microseconds(3600), 10), 1000)
    assert bulk.operation_ids == [old]


async def test_a_store_that_goes_away_meanwhile(desk: Desk) -> None:
    """What was done stays counted, and the rest is left."""
    for _ in range(3):
        await dead(desk)
    store = FaultyStore(desk.store)
    bulk = await listed(desk.operations, dead_letters(None, "unauthorized", 0, 10), 1000)
    run_ = bulk.run(Operations(store, POLICIES, NO_JOURNALS, patience_seconds=0.0), AUDIT)
    await anext(run_)
    store.on(Event.REQUEUE, refused())
    with pytest.raises(NotApplied):
        await anext(run_)
    assert str(bulk) == "1 requeued, 0 skipped, 2 left"
