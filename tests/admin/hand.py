"""Operations of every state on the model store, under a clock that only the test moves; and a program on the port."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count
from uuid import UUID, uuid4

from gateway.admin.operations import Operations
from gateway.admin.resolution import Changed, Policies, Refused, RoutePolicy, Treatment
from gateway.core.identity.key import HeaderKey, HeaderScope, Key, Scope, identity_of
from gateway.core.message import IndexedHeaders, ResponseHead, StoredResponse
from gateway.core.operation import (
    Abandon,
    Accept,
    Applied,
    Audit,
    Bury,
    Claim,
    Command,
    Complete,
    Dispatch,
    Fingerprint,
    Purge,
    Record,
    Release,
    SealedRequest,
    State,
    microseconds,
)  # fmt: skip
from gateway.core.outcome import KeepPolicy, Preset, StatusPolicy
from tests.support import http
from tests.support.house import NO_JOURNALS
from tests.support.http import Response
from tests.support.memory_store import Memory, MemoryStore

SETTLE_SECONDS = 600.0
LEASE_SECONDS = 30.0
AUDIT = Audit("alice", "ticket 7")
TREATMENT = Treatment(
    keep=KeepPolicy(body_bytes_max=1000, strip=frozenset((b"x-debug",))),
    replay_us=microseconds(3600),
    remember_us=microseconds(7200),
    settle_us=microseconds(SETTLE_SECONDS),
    status=StatusPolicy(Preset.PAYMENTS),
)
SCOPE = HeaderScope(b"X-Tenant", ())
CHARGE = RoutePolicy("charge", "charge", HeaderKey(), SCOPE, TREATMENT)
POLICIES = Policies("shop", [CHARGE])
CREATED = ResponseHead(
    201, b"Created", IndexedHeaders(((b"Location", b"/charges/1"), (b"Date", b"x"), (b"X-Debug", b"y")))
)
RESPONSE = StoredResponse(201, b"Created", ((b"Location", b"/charges/1"),), b"once")
FINGERPRINT = Fingerprint(b"recipe", b"digest", b"raw")


class Desk:
    """A model store, the operations on it, and ways to bring a record into a state."""

    def __init__(self, policies: Policies = POLICIES) -> None:
        self.memory = Memory()
        self.store = MemoryStore(self.memory)
        self.operations = Operations(self.store, policies, NO_JOURNALS, patience_seconds=0.0)
        self._numbers = count(1)

    async def in_state(self, state: State, route: str = "charge", *, key: str | None = None) -> Record:
        """A record in this state; `in_doubt` because its holder said so."""
        await self.store.start()
        record = self.say(self.claim(key or f"key-{next(self._numbers)}", route))
        match state:
            case State.IN_DOUBT:
                return self.abandon(record)
            case State.COMPLETED:
                return self.complete(record)
            case State.TOMBSTONE:
                return self.say(Purge(self.complete(record).identity.operation_id))
            case State.RELEASED:
                return self.release(record)
            case _:
                return record

    def abandon(self, record: Record, doubt: str = "timeout") -> Record:
        return self.say(Abandon(*ids(record), doubt))

    def complete(self, record: Record) -> Record:
        return self.say(Complete(*ids(record), RESPONSE, TREATMENT.replay_us, TREATMENT.remember_us))

    def release(self, record: Record, why: str = "") -> Record:
        return self.say(Release(*ids(record), TREATMENT.remember_us, why))

    async def kept(self, state: State, *, key: str | None = None, reason: str = "unauthorized") -> Record:
        """A record that keeps its request: accepted, and then claimed, in doubt or a dead letter."""
        await self.store.start()
        record = self.accepted(self.claim(key or f"key-{next(self._numbers)}"))
        return record if state is State.ACCEPTED else self.attempted(record, state, reason)

    def accepted(self, claim: Claim) -> Record:
        """The record after its request was accepted instead of claimed."""
        sealed = SealedRequest(claim.attempt_id, "k", b"s" * 40)
        within_us = TREATMENT.deliver_within_us
        return self.say(
            Accept(claim.identity, claim.attempt_id, "shop", FINGERPRINT, sealed, within_us, claim.read_token)
        )

    def attempted(self, record: Record, state: State, reason: str = "unauthorized") -> Record:
        """The same record after one more attempt: in doubt because its holder said so."""
        operation_id = record.identity.operation_id
        record = self.say(Dispatch(operation_id, record.token, uuid4(), "host:1:a", microseconds(LEASE_SECONDS)))
        match state:
            case State.IN_DOUBT:
                return self.abandon(record)
            case State.DEAD_LETTER:
                return self.say(Bury(*ids(record), reason, "answered_401", is_answered=True))
            case _:
                return record

    def claim(self, key: str, route: str = "charge", *, read_token: int | None = None) -> Claim:
        parsed = HeaderKey().find_key({b"idempotency-key": [key.encode()]})
        scope = HeaderScope(b"X-Tenant", None).find_scope(IndexedHeaders(((b"X-Tenant", b"t1"),)).by_name, None)
        assert isinstance(parsed, Key)
        assert isinstance(scope, Scope)
        identity = identity_of(service="shop", route=route, operation=route, scope=scope, key=parsed)
        return Claim(identity, uuid4(), "host:1:a", FINGERPRINT, microseconds(LEASE_SECONDS), read_token)

    def say(self, command: Command) -> Record:
        """Apply what has to be applicable."""
        result = self.store.apply_now(command)
        assert isinstance(result, Applied), result
        assert result.snapshot.record is not None
        return result.snapshot.record

    def record(self, operation_id: UUID) -> Record | None:
        return self.store.read_now(operation_id).record

    def known(self, operation_id: UUID) -> Record:
        record = self.record(operation_id)
        assert record is not None
        return record


def ids(record: Record) -> tuple[UUID, int, UUID]:
    """What a command about an attempt names."""
    assert record.attempt_id is not None
    return record.identity.operation_id, record.token, record.attempt_id


def changed(outcome: Changed | Refused) -> Changed:
    assert isinstance(outcome, Changed), outcome
    return outcome


def declined(outcome: Changed | Refused) -> Refused:
    assert isinstance(outcome, Refused), outcome
    return outcome


@dataclass
class Admin:
    """The admin port, and whoever holds this token."""

    port: int
    token: str | None = "0123456789abcdef-admin"

    async def __call__(
        self, method: str, target: str, asked: object = None, *, headers: tuple[tuple[str, str], ...] = ()
    ) -> Response:
        fields = [*headers, *([("Authorization", f"Bearer {self.token}")] if self.token is not None else [])]
        if asked is not None and not any(name == "Content-Type" for name, _ in headers):
            fields.append(("Content-Type", "application/json"))
        body = asked if isinstance(asked, bytes) else b"" if asked is None else json.dumps(asked).encode()
        return await http.request(self.port, method, target, fields, body)
