"""What operators do to records, judged on the model store, whose clock only the test moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from gateway.admin.inspection import full_json
from gateway.admin.operations import Malformed, Operations, audit_by
from gateway.admin.resolution import Happened, NothingHappened, Policies, Refusal, RoutePolicy
from gateway.config.scope import PrincipalAuth, TokenIssuer
from gateway.core.identity.body import parse_pointer
from gateway.core.identity.key import BodyPart, ComposedKey, HeaderKey, Key
from gateway.core.identity.scope import (
    ClientCertificateScope,
    ComposedScope,
    ForwardAuthScope,
    HeaderScope,
    JwtScope,
    Scope,
    derive_operation_id,
)
from gateway.core.identity.token import claims_value
from gateway.core.message import IndexedHeaders, ResponseHead
from gateway.core.operation import (
    Audit,
    Complete,
    Event,
    Snapshot,
    State,
    Takeover,
    microseconds,
)  # fmt: skip
from gateway.core.replay import KeepPolicy
from gateway.store.base import Indefinite, NotApplied
from gateway.store.operations import AuditEntry, Query
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
    changed(await desk.operations.resolve(operation_id, NothingHappened(), AUDIT, is_forced=True))
    (entry,) = await audits(desk, operation_id)
    assert entry.why == "ticket 7 [forced: early]"


async def test_force_that_was_not_needed_is_not_written_down() -> None:
    """An audit says that something was forced only where it was."""
    desk, operation_id = await desk_in(State.IN_DOUBT, settled=True)
    changed(await desk.operations.resolve(operation_id, NothingHappened(), AUDIT, is_forced=True))
    assert [entry.why for entry in await audits(desk, operation_id)] == ["ticket 7"]


@pytest.mark.parametrize(
    ("status", "said", "body"),
    [
        (503, "nothing certain about what happened", b""),
        (401, "that nothing happened", b""),
        (429, "that nothing happened", b""),
        (409, "nothing certain about what happened", b'{"title":"A request is outstanding for this Idempotency-Key"}'),
        (409, "nothing certain about what happened", b"this idempotency key is in progress"),
    ],
    ids=["503", "401", "429", "outstanding", "outstanding-text"],
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


DONE = "It completed already, at 2027-01-15T08:00:00Z (0s ago), with status 201; there is nothing to resolve."
OTHERWISE = {
    ("resolve", State.CLAIMED): "host:1:a is executing it now, under token 1. Wait for its response; when its lease "
    "ends without one, in 30s unless renewed, it is in doubt and can be resolved.",
    ("resolve", State.COMPLETED): DONE,
    ("resolve", State.TOMBSTONE): DONE,
    ("resolve", State.RELEASED): "It is known already that nothing happened; the next request with this key runs. "
    "There is nothing to resolve.",
    ("purge", State.CLAIMED): "It is being executed by host:1:a; there is no response to purge yet.",
    ("purge", State.IN_DOUBT): "It is in doubt and has no response to purge. Doubt cannot be purged: resolve it.",
    ("purge", State.RELEASED): "It has no response: nothing happened. To forget the key as well, erase it.",
    ("erase", State.CLAIMED): "It is being executed, and cannot be erased.",
    ("erase", State.IN_DOUBT): "It is in doubt, and doubt cannot be erased: resolve it first.",
    ("erase", State.COMPLETED): "It still has a response: purge it first.",
}


@pytest.mark.parametrize(("verb", "state"), OTHERWISE, ids=lambda value: str(getattr(value, "value", value)))
async def test_nothing_to_do(verb: str, state: State) -> None:
    """What is in another state is left as it is, forced, sure or not, and the text says what it is."""
    desk = Desk()
    before, here = await desk.in_state(state), desk.operations
    operation_id = before.identity.operation_id
    tries = {
        "resolve": lambda is_sure: here.resolve(
            operation_id, CREATED_ONCE if is_sure else NothingHappened(), AUDIT, is_forced=True
        ),
        "purge": lambda is_sure: here.purge(operation_id, AUDIT),
        "erase": lambda is_sure: here.erase(operation_id, AUDIT, is_sure=is_sure),
    }
    for is_sure in (True, False):
        outcome = declined(await tries[verb](is_sure))
        assert (outcome.reason, outcome.text) == (Refusal.STATE, OTHERWISE[verb, state])
    assert desk.record(operation_id) == before
    assert await audits(desk, operation_id) == []


async def test_unknown() -> None:
    """An id that nothing is remembered under is said to be one, whatever is wished."""
    desk = Desk()
    await desk.store.start()
    operation_id = uuid4()
    for outcome in (
        await desk.operations.resolve(operation_id, NothingHappened(), AUDIT),
        await desk.operations.purge(operation_id, AUDIT),
        await desk.operations.erase(operation_id, AUDIT, is_sure=True),
        await desk.operations.erase(operation_id, AUDIT, is_sure=False),
    ):
        assert declined(outcome).reason is Refusal.UNKNOWN
        assert declined(outcome).text.startswith(f"Nothing is remembered of operation {operation_id}: it never began")


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
    later = Operations(desk.store, rotated, patience_seconds=0.0)
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


async def test_another_doubt_is_another_resolution() -> None:
    """The same words about a later doubt of the same key are a new command."""
    desk, operation_id = await desk_in(State.IN_DOUBT, settled=True)
    changed(await desk.operations.resolve(operation_id, NothingHappened(), AUDIT))
    claimed = desk.say(replace(desk.claim("key-1"), read_token=desk.known(operation_id).token))
    assert claimed.identity.operation_id == operation_id
    desk.memory.clock.advance(LEASE_SECONDS + SETTLE_SECONDS)
    outcome = changed(await desk.operations.resolve(operation_id, NothingHappened(), AUDIT))
    assert outcome.text.startswith("Resolved: no")
    assert len(await audits(desk, operation_id)) == 2


class Meddled(FaultyStore):
    """A store on which something happens right after the record was read."""

    meddle: Callable[[Snapshot], object]

    async def read(self, operation_id: UUID) -> Snapshot:
        snapshot = await super().read(operation_id)
        self.meddle(snapshot)
        return snapshot


async def test_fenced_when_somebody_was_faster() -> None:
    """What happened between the look and the word wins: a late response, or a takeover."""
    desk = Desk()
    record = await desk.in_state(State.IN_DOUBT)
    operation_id, store = record.identity.operation_id, Meddled(desk.store)
    operations = Operations(store, POLICIES)
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
    """A change whose response is lost is said again and done once, whether it had taken effect or not."""
    for fault in (lost(), dropped()):
        desk, operation_id = await desk_in(State.IN_DOUBT, settled=True)
        store = faulty(desk, Event.DISPROVE, fault)
        changed(await Operations(store, POLICIES).resolve(operation_id, NothingHappened(), AUDIT))
        assert len(await audits(desk, operation_id)) == 1


async def test_store_that_stays_away() -> None:
    """Without any response the operator is told that it is not known, and with a refusal that nothing was changed."""
    desk, operation_id = await desk_in(State.IN_DOUBT, settled=True)
    store = faulty(desk, Event.DISPROVE, lost())
    with pytest.raises(Indefinite, match="Give the same command again to find out; it is not done twice"):
        await Operations(store, POLICIES, patience_seconds=0.0).resolve(operation_id, NothingHappened(), AUDIT)
    again = await desk.operations.resolve(operation_id, NothingHappened(), AUDIT)
    assert changed(again).text.startswith("The same command has resolved it already")
    store = faulty(desk, Event.PURGE, refused())
    with pytest.raises(NotApplied):
        await Operations(store, POLICIES).purge(operation_id, AUDIT)


async def test_long_body_and_declared_retention() -> None:
    """A body over the route's limit is not kept, and the service's own retention counts, as for any response."""
    desk, operation_id = await desk_in(State.IN_DOUBT)
    head = ResponseHead(200, b"OK", IndexedHeaders(((b"Idempotency-Retention", b"10000"),)))
    outcome = changed(await desk.operations.resolve(operation_id, Happened(head, b"x" * 1001), AUDIT))
    assert "response-not-stored" in outcome.notes[0]
    record = desk.known(operation_id)
    assert record.response is not None
    assert (record.response.body, record.response.headers) == (None, ())
    assert record.replay_until_us == record.remember_until_us == desk.memory.clock() + microseconds(10_000)


async def test_nothing_is_kept_where_nothing_is() -> None:
    """On a route that stores no bodies an empty one is not stored either, as for any response."""
    treatment = replace(TREATMENT, keep=KeepPolicy(body_bytes_max=0))
    desk, operation_id = await desk_in(State.IN_DOUBT, Policies("shop", [replace(CHARGE, treatment=treatment)]))
    changed(await desk.operations.resolve(operation_id, Happened(CREATED, b""), AUDIT))
    response = desk.known(operation_id).response
    assert response is not None
    assert response.body is None


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


async def test_retired_answer_cannot_be_purged() -> None:
    """A response whose window is over is gone already."""
    desk, operation_id = await desk_in(State.COMPLETED)
    desk.memory.clock.advance(3600)
    outcome = declined(await desk.operations.purge(operation_id, AUDIT))
    assert outcome.text.startswith("Its response is not replayed any more, and will be deleted by itself;")


async def test_erase_whose_answer_was_lost() -> None:
    """An erasure that took effect unseen is told as one."""
    desk, operation_id = await desk_in(State.TOMBSTONE)
    operations = Operations(faulty(desk, Event.ERASE, lost()), POLICIES)
    changed(await operations.erase(operation_id, AUDIT, is_sure=True))


async def test_copies_that_were_not_told() -> None:
    """Copies that could not be reached, and memories that learn of nothing, are named with the change."""
    desk, operation_id = await desk_in(State.COMPLETED)
    owing = Operations(desk.store, POLICIES, purges_pending=lambda: 1)
    outcome = changed(await owing.purge(operation_id, AUDIT))
    assert outcome.purges_pending == 1
    assert "The fast tier could not be purged." in outcome.notes[0]
    unheard = Operations(desk.store, POLICIES, cache_seconds=30.0)
    (note,) = changed(await unheard.purge(operation_id, AUDIT)).notes
    assert note == "Running gateways may reply from their cache for 30 s more."


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


async def test_pages() -> None:
    """Pages come in the order of ids, each operation once, and stop at the limit."""
    desk = Desk()
    ids = sorted([(await desk.in_state(State.IN_DOUBT)).identity.operation_id for _ in range(7)])
    await desk.in_state(State.RELEASED)
    query = Query(frozenset((State.IN_DOUBT,)), limit=3)

    async def listed(limit: int | None) -> list[list[UUID]]:
        return [
            [snapshot.record.identity.operation_id for snapshot in page if snapshot.record is not None]
            async for page in desk.operations.pages(query, limit)
        ]

    assert await listed(None) == [ids[:3], ids[3:6], ids[6:]]
    assert await listed(4) == [ids[:3], ids[3:4]]
    assert await listed(6) == [ids[:3], ids[3:6]]
    desk.memory.clock.advance(60)
    young = (await desk.in_state(State.IN_DOUBT)).identity.operation_id
    old = replace(query, age_us=microseconds(60), limit=100)
    assert young not in [s.record.identity.operation_id for s in await desk.operations.page(old) if s.record]


@pytest.mark.parametrize(
    ("who", "why"),
    [("", "x"), ("a", " "), ("a", "x\ny"), ("a", "x" * 1001), ("a" * 129, "x"), ("a", "\x1b[31m")],
    ids=["no who", "no why", "lines", "long why", "long who", "escape"],
)
def test_audit_is_a_line(who: str, why: str) -> None:
    """Who and why are there, short and printable."""
    with pytest.raises(ValueError, match=r"who|why"):
        audit_by(who, why)
    assert audit_by(" alice ", " ticket 7 ") == AUDIT


async def test_an_operation_of_another_service() -> None:
    """What shares the store and the names of ours is shown, and not resolved by whoever cannot know how to treat it."""
    desk, operation_id = await desk_in(State.IN_DOUBT, Policies("books", [CHARGE]), settled=True)
    for ruling in (NothingHappened(), CREATED_ONCE):
        outcome = declined(await desk.operations.resolve(operation_id, ruling, AUDIT, is_forced=True))
        assert outcome.reason is Refusal.SERVICE
    inspected = await desk.operations.inspect(operation_id)
    assert inspected.treatment is None
    assert full_json(inspected)["next"].startswith("It is an operation of another service that shares the store.")


@pytest.mark.parametrize("state", [State.COMPLETED, State.TOMBSTONE], ids=lambda state: state.value)
async def test_nothing_of_another_service_is_dropped(state: State) -> None:
    """Its copies may be where our configuration does not reach, so whoever purges or erases is sent to its own."""
    desk = Desk(Policies("books", [CHARGE]))
    before = await desk.in_state(state)
    operation_id = before.identity.operation_id
    for outcome in (
        await desk.operations.purge(operation_id, AUDIT),
        await desk.operations.erase(operation_id, AUDIT, is_sure=True),
    ):
        assert declined(outcome).reason is Refusal.SERVICE
    assert desk.record(operation_id) == before


async def test_a_route_whose_name_is_another_operations_now() -> None:
    """A record is not treated by what a route says that only has the name of its own."""
    policies = Policies("shop", [route("charge", "refund", 10), route("pay", "charge", 99)])
    desk = Desk(policies)
    record = await desk.in_state(State.IN_DOUBT)
    assert policies.treatment_of(record) == route("pay", "charge", 99).treatment
