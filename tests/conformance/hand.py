"""What a test holds of one operation on one store. A `Hand` says every command in its own store's tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

from gateway.core.delivery import Delivering
from gateway.core.identity.key import derive_operation_id
from gateway.core.message import StoredResponse
from gateway.core.operation import (
    NO_ATTEMPT,
    SHORT_DIGEST_BYTES,
    SHORT_SCOPE_BYTES,
    Abandon,
    Accept,
    Applied,
    Audit,
    Bury,
    Claim,
    ClaimingCommand,
    Command,
    Complete,
    Dispatch,
    Disprove,
    Erase,
    Fingerprint,
    Forget,
    Identity,
    Postpone,
    ProbeTarget,
    Prove,
    Purge,
    Record,
    Reinstate,
    Release,
    Renew,
    RequestInfo,
    Requeue,
    ResolvingCommand,
    Result,
    SealedRequest,
    Snapshot,
    State,
    Takeover,
    Withdraw,
    microseconds,
)
from gateway.store.base import Store

SERVICE = "shop"

# Far apart, so that a store whose clock runs while the test runs never comes near the wrong one.
LEASE_SECONDS = 60.0
POSTPONE_SECONDS = 100.0
DELIVER_SECONDS = 600.0
REPLAY_SECONDS = 1_000.0
REMEMBER_SECONDS = 5_000.0
LEASE_US = microseconds(LEASE_SECONDS)
POSTPONE_US = microseconds(POSTPONE_SECONDS)
DELIVER_US = microseconds(DELIVER_SECONDS)
REPLAY_US = microseconds(REPLAY_SECONDS)
REMEMBER_US = microseconds(REMEMBER_SECONDS)

# As long as real ones: of shorter digests a store cannot keep a part.
_DIGEST, _OTHER_DIGEST, _ANOTHER_DIGEST, _RAW, _OTHER_RAW = (
    sha256(text).digest() for text in (b"digest", b"other digest", b"another digest", b"raw", b"other raw")
)
SAME = Fingerprint(b"recipe", _DIGEST, _RAW, "key")
OTHER = Fingerprint(b"recipe", _OTHER_DIGEST, _OTHER_RAW, "key")
SAME_BY_RAW = Fingerprint(b"a newer recipe", _ANOTHER_DIGEST, _RAW, "key")
RAW_UNDER_ANOTHER_KEY = Fingerprint(b"a newer recipe", _ANOTHER_DIGEST, _RAW, "another key")
UNCOMPARABLE = Fingerprint(b"a newer recipe", _ANOTHER_DIGEST, _OTHER_RAW, "key")

ANSWER = StoredResponse(
    201,
    b"Created",
    ((b"Content-Type", b"text/plain"), (b"Location", b"/charges/1"), (b"X", b"1"), (b"X", b"2")),
    b"one",
    b"version one",
)
# What completions name as made, and what those name who do not know what became of it. Those who prove it name nothing.
RESOURCE, PENDING = "/charges/1", "pending_\u00e9"
OTHER_ANSWER = StoredResponse(200, b"OK", ((b"Content-Type", b"text/plain"),), b"another")


def new_identity(
    route: str = "create_payment", operation: str = "charges", key: str | None = "key", service: str = SERVICE
) -> Identity:
    scope_digest, key_digest = b"scope" + uuid4().bytes, b"key" + uuid4().bytes
    operation_id = derive_operation_id(service, operation, scope_digest, key_digest)
    return Identity(operation_id, route, operation, scope_digest, key_digest, key)


@asynccontextmanager
async def started(store: Any) -> AsyncIterator[Any]:
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def all_of(*operations: str) -> Delivering:
    """Whatever waits under these operation names, of any route."""
    return Delivering(frozenset(("renamed", each) for each in operations), frozenset(), frozenset(operations))


@dataclass
class Script:
    """The ids of one history, the same on every store that plays it: the n-th attempt is the n-th everywhere."""

    identity: Identity = field(default_factory=new_identity)
    _ids: list[UUID] = field(default_factory=list)

    def id(self, index: int) -> UUID:
        while len(self._ids) <= index:
            self._ids.append(uuid4())
        return self._ids[index]


@dataclass
class Hand:
    """One operation on one store as the test has seen it. Everybody who ever held or read something, in one."""

    script: Script = field(default_factory=Script)
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(None, 0))
    tokens: list[int] = field(default_factory=list)
    attempts: int = 0
    last: Command | None = None
    granted: Record | None = None

    @property
    def operation_id(self) -> UUID:
        return self.script.identity.operation_id

    @property
    def record(self) -> Record | None:
        return self.snapshot.record

    @property
    def token(self) -> int:
        """The newest token, also after its record is gone."""
        return self.tokens[-1] if self.tokens else 7

    @property
    def stale_token(self) -> int:
        """A token from before, of this operation if it had one."""
        return self.tokens[-2] if len(self.tokens) > 1 else self.token - 1

    @property
    def future_token(self) -> int:
        return self.token + 1_000_000

    @property
    def attempt_id(self) -> UUID:
        """That of the record; without one, an attempt's that is long over."""
        return self.record.attempt_id if self.record else self.script.id(max(self.attempts - 1, 0))

    @property
    def next_id(self) -> UUID:
        """The id that the next attempt or resolution will have."""
        return self.script.id(self.attempts)

    def see(self, command: Command, result: Result) -> None:
        self.look(result.snapshot)
        if isinstance(result, Applied):
            self.last = command
            if isinstance(command, ClaimingCommand):
                self.granted = result.snapshot.record
        if isinstance(command, ClaimingCommand | Accept | ResolvingCommand):
            self.attempts += 1

    def look(self, snapshot: Snapshot) -> None:
        """Take note of what the store says of the operation."""
        self.snapshot = snapshot
        if snapshot.record and (not self.tokens or snapshot.record.token != self.tokens[-1]):
            self.tokens.append(snapshot.record.token)

    @property
    def request(self) -> RequestInfo | None:
        """The next attempt's; of every third nothing is known."""
        if self.attempts % 3 == 2:
            return None
        ids = ("r-1", "0af7651916cd43dd8448eb211c80319c") if self.attempts % 3 else (None, None)
        return RequestInfo("POST", "api.test", f"/charges/{self.attempts}", *ids)

    @property
    def _held(self) -> tuple[UUID, int, UUID]:
        return self.operation_id, self.token, self.attempt_id

    @property
    def _read(self) -> tuple[UUID, int, UUID]:
        return self.operation_id, self.token, self.next_id

    # Each verb as whoever is entitled to it would say it now. `replace` makes the others.

    def claim(self) -> Claim:
        # The second has none, which shows whether the first one's is kept.
        target = None if self.attempts % 2 else ProbeTarget(b"/charges?attempt=%d" % self.attempts, b"api.test")
        holder = f"holder-{self.attempts}"
        return Claim(self.script.identity, self.next_id, holder, SAME, LEASE_US, probe=target, request=self.request)

    def retry(self) -> Claim:
        return replace(self.claim(), read_token=self.token)

    def accept(self) -> Accept:
        claim = self.claim()
        kept = SealedRequest(self.next_id, "2026-11", b"sealed \x00 %d" % self.attempts)
        return Accept(
            claim.identity, self.next_id, SERVICE, SAME, kept, DELIVER_US, probe=claim.probe, request=claim.request
        )

    def accept_again(self) -> Accept:
        return replace(self.accept(), read_token=self.token)

    def dispatch(self) -> Dispatch:
        return Dispatch(*self._read, f"holder-{self.attempts}", LEASE_US)

    def renew(self) -> Renew:
        return Renew(*self._held, 2 * LEASE_US)

    def complete(self, response: StoredResponse = ANSWER) -> Complete:
        return Complete(*self._held, response, REPLAY_US, REMEMBER_US, RESOURCE)

    def complete_unkept(self) -> Complete:
        return self.complete(replace(ANSWER, body=None))

    def complete_grant(self) -> Complete:
        return replace(self.complete(), granted=self.granted)

    def release(self) -> Release:
        return Release(*self._held, REMEMBER_US)

    def forget(self) -> Forget:
        return Forget(*self._held)

    def abandon(self) -> Abandon:
        return Abandon(*self._held, "reset", PENDING)

    def postpone(self) -> Postpone:
        return Postpone(*self._held, POSTPONE_US, "answered_503", is_answered=True)

    def bury(self) -> Bury:
        return Bury(*self._held, "unauthorized", "answered_401", is_answered=True)

    def takeover(self) -> Takeover:
        holder = f"holder-{self.attempts}"
        return Takeover(*self._read, holder, LEASE_US, self.request)

    def prove(self, response: StoredResponse = OTHER_ANSWER) -> Prove:
        return Prove(
            self.operation_id, self.token, self.next_id, response, REPLAY_US, REMEMBER_US, self.audit("was seen")
        )

    def disprove(self) -> Disprove:
        return Disprove(*self._read, REMEMBER_US, self.audit("never arrived"))

    def reinstate(self) -> Reinstate:
        return Reinstate(*self._read, self.audit("never arrived"))

    def requeue(self) -> Requeue:
        return Requeue(*self._read, DELIVER_US, self.audit("is mended"))

    def withdraw(self) -> Withdraw:
        return Withdraw(*self._read, REMEMBER_US, self.audit("is called off"))

    def purge(self) -> Purge:
        return Purge(self.operation_id, self.audit("holds a name"))

    def erase(self) -> Erase:
        return Erase(self.operation_id, self.audit("by request"))

    def audit(self, why: str) -> Audit:
        return Audit(f"operator-{self.attempts}", why)


Speech = Callable[[Hand], Command]


async def do(store: Store, hand: Hand, *speeches: Speech) -> None:
    for speech in speeches:
        command = speech(hand)
        result = await store.apply(command)
        assert isinstance(result, Applied)
        hand.see(command, result)


async def state(store: Store, hand: Hand) -> State:
    hand.look(await store.read(hand.operation_id))
    return hand.snapshot.state


def as_kept_in(kept: Record | None, record: Record | None) -> Record | None:
    """The record as far as a store must have it that has given up as much of it as of the kept one (`Record`)."""
    if kept is None or kept.attempt_id != NO_ATTEMPT or record is None or record.state is not State.TOMBSTONE:
        return record
    completed_us, fingerprint = record.completed_us, record.fingerprint
    assert completed_us is not None
    digests = (fingerprint.digest[:SHORT_DIGEST_BYTES], fingerprint.raw[:SHORT_DIGEST_BYTES])
    identity = record.identity
    return replace(
        record,
        identity=replace(
            identity, scope_digest=identity.scope_digest[:SHORT_SCOPE_BYTES], key_digest=b"", key=None, service=SERVICE
        ),
        attempt_id=NO_ATTEMPT,
        resolution_id=None,
        holder="",
        fingerprint=Fingerprint(fingerprint.recipe, *digests, fingerprint.key_id),
        first_claimed_us=completed_us,
        claimed_us=completed_us,
        probe=None,
        request=None,
    )


def increasing(tokens: list[int]) -> bool:
    """Whether every token is higher than all before it."""
    return all(earlier < later for earlier, later in pairwise(tokens))
