"""Concurrent verbs of several stores on few operations of a real Postgres: the simulation's counterpart for its SQL.

    python -m tests.store.postgres_fuzz --seed 7 --seconds 12

Actors apply random commands to the same few operations at the same time, most of them fitting for the state that the
operation was last seen in, some of them stale, repeated or unfit, while other sessions sweep and hold records locked
for a moment: what waits there decides about a version of the record that its statement's snapshot has not. Leases and
windows are a few milliseconds long. A trigger logs each version of each record; `postgres_fuzz_judge` judges.

The seed decides what each actor does with what it sees. When the server does it no seed decides, so that a seed need
not show a fault again.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final
from uuid import UUID

import asyncpg

from gateway.core.lifecycle import tombstone_response
from gateway.core.message import StoredResponse
from gateway.core.operation import (
    Abandon,
    Accept,
    Applied,
    Audit,
    Bury,
    Claim,
    ClaimingCommand,
    Command,
    Complete,
    Content,
    Dispatch,
    Disprove,
    Erase,
    Fenced,
    Forget,
    HolderCommand,
    Identity,
    Lapsed,
    Postpone,
    Prove,
    Purge,
    Record,
    Reinstate,
    Release,
    Renew,
    Requeue,
    SealedRequest,
    Snapshot,
    State,
    Takeover,
    Withdraw,
    operation_id_of,
)
from gateway.core.outbox import Outbox
from gateway.store.base import StoreError
from gateway.store.postgres.store import PostgresStore
from gateway.store.relational.rows import COLUMNS, DELIVERY, RECORD, decode, kind_of
from tests.conformance.hand import OTHER, SAME, SERVICE, all_of, new_identity
from tests.store.postgres_fuzz_judge import Given, History, Said, Version, judge
from tests.store.postgres_sessions import opened, session
from tests.support.postgres import PostgresInstallation, PostgresServer, workspace

# Those of a lane, and others.
IN_LANE: Final = 2
OPERATIONS: Final = 4
STORES: Final = 3
ACTORS: Final = 12
# What no statement here takes, so that none is given up for being slow.
_COMMAND_SECONDS: Final = 60.0
_MORE_SECONDS: Final = 40.0
_MS: Final = 1_000

# Each version of each record with its delivery, in the order in which they were written: at the end of the transaction,
# while record and lane are still locked and after the delivery was written. With it, whether a request is there. A
# record is logged as often as a trigger fires for it, also where another one's change gave or took its turn in the
# lane.
_LOG: Final = """
CREATE TABLE version (
    number bigserial, at_us bigint, made_by bigint, is_gone boolean, has_request boolean,
    delivery idempotency_gateway.delivery, LIKE idempotency_gateway.operation
);
CREATE FUNCTION log_version() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    at_us bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    logged idempotency_gateway.operation := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    INSERT INTO public.version
    SELECT
        nextval('public.version_number_seq'), at_us, txid_current(), TG_OP = 'DELETE',
        EXISTS (SELECT FROM idempotency_gateway.request r WHERE r.row = logged.id), d, logged.*
    FROM (SELECT) one LEFT JOIN idempotency_gateway.delivery d ON d.row = logged.id;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER log_version AFTER INSERT OR UPDATE OR DELETE ON idempotency_gateway.operation
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION log_version();
CREATE CONSTRAINT TRIGGER log_narrow AFTER INSERT OR UPDATE OR DELETE ON idempotency_gateway.narrow
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION log_version();
CREATE FUNCTION log_turn() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.version
    SELECT
        nextval('public.version_number_seq'), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, txid_current(),
        false, EXISTS (SELECT FROM idempotency_gateway.request r WHERE r.row = o.id), d, o.*
    FROM idempotency_gateway.operation o JOIN idempotency_gateway.delivery d ON d.row = o.id
    WHERE o.id = NEW.row;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER log_turn AFTER UPDATE ON idempotency_gateway.delivery
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.is_behind <> NEW.is_behind) EXECUTE FUNCTION log_turn()
"""
_DELIVERY: Final = ", ".join(f"(o.delivery).{column}" for column in DELIVERY)
_LOGGED: Final = f"""
SELECT
    o.number, o.at_us, o.made_by, o.is_gone, o.has_request, (o.delivery).is_accepted, (o.delivery).reason IS NOT NULL,
    {RECORD.replace("{row}", "id")}, CASE WHEN o.body_kept THEN ''::bytea END, {_DELIVERY}
FROM public.version o ORDER BY o.number
"""
_WIDTH: Final = 3 + len(COLUMNS)
_HOLD: Final = "SELECT FROM idempotency_gateway.operation WHERE id = $1 FOR UPDATE"

# What somebody may want of a record in each state. A quarter of all commands are any of these.
_FITTING: Final[dict[State, tuple[type[Command], ...]]] = {
    State.ABSENT: (Claim, Accept),
    State.RELEASED: (Claim, Claim, Accept, Accept, Complete, Erase),
    State.ACCEPTED: (Dispatch, Dispatch, Dispatch, Dispatch, Withdraw, Complete, Accept),
    State.CLAIMED: (Claim, Renew, Renew, Complete, Complete, Release, Forget, Abandon, Takeover, Prove, Disprove),
    State.IN_DOUBT: (Takeover, Takeover, Complete, Release, Forget, Abandon, Prove, Disprove),
    State.DEAD_LETTER: (Requeue, Requeue, Withdraw, Complete, Accept),
    State.COMPLETED: (Claim, Purge, Erase),
    State.TOMBSTONE: (Claim, Erase),
}
# The same of a record that keeps its request.
_FITTING_KEPT: Final[dict[State, tuple[type[Command], ...]]] = {
    State.CLAIMED: (Renew, Complete, Abandon, Abandon, Abandon, Postpone, Postpone, Bury, Bury),
    State.IN_DOUBT: (Reinstate, Reinstate, Reinstate, Takeover, Complete, Postpone, Bury, Prove, Disprove),
}
_ANY: Final = tuple({kind: None for kinds in (*_FITTING.values(), *_FITTING_KEPT.values()) for kind in kinds})


@dataclass
class _Known:
    """What the actors know of one operation, all together."""

    identity: Identity
    is_ordered: bool
    seen: Snapshot = field(default_factory=lambda: Snapshot(None, 0))
    grants: deque[Record] = field(default_factory=lambda: deque(maxlen=4))
    said: deque[Command] = field(default_factory=lambda: deque(maxlen=8))

    def look(self, snapshot: Snapshot) -> None:
        if snapshot.now_us >= self.seen.now_us:
            self.seen = snapshot


class _Actor:
    """Applies commands to operations, a few at a time, and notes what came of each."""

    def __init__(self, number: int, seed: int, store: PostgresStore, known: list[_Known], history: History) -> None:
        self._number = number
        self._random = random.Random(f"{seed}/{number}")
        self._store = store
        self._known = known
        self._history = history

    async def act(self) -> None:
        """One turn: commands on different operations at once, which go in one batch, or one of the other verbs."""
        roll = self._random.random()
        if roll < 0.04:
            await self._note_read(self._random.choice(self._known))
        elif roll < 0.05:
            await self._note_due()
        elif roll < 0.09:
            await self._recover(self._random.choice(self._known))
        else:
            some = self._random.sample(self._known, self._random.choice((1, 1, 2, len(self._known))))
            await asyncio.gather(*(self._apply(known, self._command(known)) for known in some))

    async def _apply(self, known: _Known, command: Command) -> None:
        known.said.append(command)
        said = await self._timed(operation_id_of(command), command, lambda: self._store.apply(command))
        if isinstance(said.result, Applied | Lapsed | Fenced):
            known.look(said.result.snapshot)
        if isinstance(said.result, Applied) and isinstance(command, ClaimingCommand):
            known.grants.append(said.result.snapshot.record)

    async def _note_read(self, known: _Known) -> None:
        operation_id = known.identity.operation_id
        said = await self._timed(operation_id, None, lambda: self._store.read(operation_id))
        if isinstance(said.result, Snapshot):
            known.look(said.result)

    async def _note_due(self) -> None:
        """What is due is as it is read, whoever asks for it."""
        names = all_of(*(known.identity.operation for known in self._known))
        begun = time.monotonic()
        due = (await self._store.find_due(SERVICE, names, len(self._known))).found
        for snapshot in due:
            self._history.said.append(
                Said(snapshot.record.identity.operation_id, None, begun, time.monotonic(), snapshot)
            )

    async def _timed(self, operation_id: UUID, command: Command | None, call: Callable[[], Awaitable[Any]]) -> Said:
        begun = time.monotonic()
        try:
            result = await call()
        except StoreError as error:
            result = error
        said = Said(operation_id, command, begun, time.monotonic(), result)
        self._history.note(said)
        return said

    async def _recover(self, known: _Known) -> None:
        record, lease_us = known.seen.record, self._random.randint(1, 10) * _MS
        if record is None:
            return
        operation_id, begun = known.identity.operation_id, time.monotonic()
        lease = await self._store.recover(operation_id, record.token, lease_us, is_urgent=self._random.random() < 0.5)
        if lease is None:
            return
        got, is_given_back = time.monotonic(), self._random.random() < 0.5
        back = time.monotonic() if is_given_back else None
        self._history.given.append(Given(lease, begun, got, lease_us, back))
        if is_given_back:
            await self._store.put_off(lease, self._random.randint(0, 5) * _MS, "unknown")

    def _command(self, known: _Known) -> Command:
        if known.said and self._random.random() < 0.1:
            return self._random.choice(known.said)
        state, record = known.seen.state, known.seen.record
        fitting = _FITTING | _FITTING_KEPT if record is not None and record.delivery is not None else _FITTING
        kinds = fitting[state] if self._random.random() < 0.75 else _ANY
        return self._made(self._random.choice(kinds), known)

    def _made(self, kind: type[Command], known: _Known) -> Command:
        """A command of this kind, with random values that fit."""
        record, source = known.seen.record, self._random
        token, attempt_id, granted = self._holder(known)
        new_id, replay_us = self._id(), self._us(0, 300)
        # A key that is remembered for whole seconds becomes narrow.
        key_us = replay_us + self._us(0, 40) if source.random() < 0.5 else 1_000 * _MS
        # Half of them hold a content: those of one record share it, and the others' is one that each caller means.
        own = random.Random(str(known.identity.operation_id)).randbytes(16)
        digest = own if source.random() < 0.5 else bytes(16)
        content = Content(digest, self._us(0, 20), is_distinct=digest == bytes(16))
        read_token = None if record is None or source.random() < 0.2 else record.token
        values = {
            "identity": known.identity,
            "operation_id": known.identity.operation_id,
            "service": SERVICE,
            "holder": f"actor-{self._number}",
            "fingerprint": SAME if source.random() < 0.9 else OTHER,
            "token": token,
            "read_token": read_token if kind in (Claim, Accept) else token,
            "attempt_id": attempt_id if issubclass(kind, HolderCommand) else new_id,
            "resolution_id": new_id,
            "lease_us": int(self._us(2, 150) * self._history.pace),
            "pause_us": self._us(0, 10),
            "deliver_within_us": int(self._us(5, 300) * self._history.pace),
            "replay_us": replay_us,
            "remember_us": key_us if kind in (Complete, Prove) else self._us(1, 60),
            "content": content if source.random() < 0.5 else None,
            "kept": SealedRequest(new_id, "2026-11", source.randbytes(source.randint(0, 40))),
            # Of one scope, so of the same lane in most cases; now and then of another one, after it was withdrawn.
            "lane": bytes([source.random() < 0.1]) * 32 if known.is_ordered else None,
            "stops_lane": source.random() < 0.5,
            "response": StoredResponse(
                source.randint(200, 299), b"OK", ((b"Location", b"/charges/1"),), self._id().bytes
            ),
            "granted": granted,
            # Now and then what no column takes: it alone is refused, and none of its neighbours.
            "doubt": "reset" if source.random() < 0.95 else "a\0b",
            "reason": "unauthorized",
            "failure": "refused",
            "is_answered": source.random() < 0.5,
            "audit": Audit(self._id().hex, "by chance") if source.random() < 0.5 else None,
        }
        return kind(**{each.name: values[each.name] for each in fields(kind) if each.name in values})

    def _holder(self, known: _Known) -> tuple[int, UUID, Record | None]:
        """Token and attempt of whoever was last granted the operation, or of somebody before."""
        record = known.seen.record
        if known.grants and (record is None or self._random.random() < 0.4):
            granted = self._random.choice(known.grants)
            return granted.token, granted.attempt_id, granted if self._random.random() < 0.5 else None
        return (1, self._id(), None) if record is None else (record.token, record.attempt_id, None)

    def _id(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def _us(self, least_ms: int, most_ms: int) -> int:
        return self._random.randint(least_ms * _MS, most_ms * _MS)


async def fuzz(url: str, seed: int, seconds: float) -> History:
    """Let the actors work on this empty database for so long, and return what happened."""
    history = History()
    known = [_Known(new_identity(), is_ordered=number < IN_LANE) for number in range(OPERATIONS)]
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(opened(url, command_seconds=_COMMAND_SECONDS, outbox=Outbox(SERVICE)))
            for _ in range(STORES)
        ]
        admin, *holders = [await stack.enter_async_context(session(url)) for _ in range(3)]
        await admin.execute(_LOG)
        begun = time.monotonic()

        def is_over() -> bool:
            spent_seconds = time.monotonic() - begun
            # On a busy machine nearly each acceptance would be over before the call that dispatches it, and each lease
            # before the one that renews it.
            history.pace = max(1.0, spent_seconds - seconds)
            return spent_seconds >= seconds + _MORE_SECONDS or (spent_seconds >= seconds and history.has_effects)

        actors = [_Actor(n, seed, stores[n % STORES], known, history) for n in range(ACTORS)]
        async with asyncio.TaskGroup() as working:
            for actor in actors:
                working.create_task(_until(is_over, actor.act))
            for number, store in enumerate(stores[:2]):
                source = random.Random(f"{seed}/sweeper/{number}")
                working.create_task(_until(is_over, lambda store=store, source=source: _sweep(store, source, history)))
            for number, holder in enumerate(holders):
                source = random.Random(f"{seed}/holder/{number}")
                working.create_task(_until(is_over, lambda holder=holder, source=source: _hold(holder, source, known)))
        await _collect(admin, history)
    return history


async def _until(is_over: Callable[[], bool], act: Callable[[], Awaitable[None]]) -> None:
    while not is_over():
        await act()


async def _sweep(store: PostgresStore, source: random.Random, history: History) -> None:
    swept = await store.sweep(source.randint(1, 10))
    history.swept += swept


async def _hold(holder: Any, source: random.Random, known: list[_Known]) -> None:
    """Hold a record for a moment, while others queue behind it."""
    # An acceptance locks its lane before it inserts its record, and others theirs afterwards: the server ends one.
    with suppress(asyncpg.DeadlockDetectedError):
        async with holder.transaction():
            await holder.fetch(_HOLD, source.choice(known).identity.operation_id.bytes)
            await holder.fetch("SELECT pg_sleep($1)", source.uniform(0.0, 0.004))


async def _collect(admin: Any, history: History) -> None:
    """Add what the server logged, and what it has at the end."""
    kinds = {row[0]: tuple(row) for row in await admin.fetch("SELECT * FROM idempotency_gateway.kind")}
    for number, at_us, made_by, is_gone, has_request, is_accepted, is_dead, *columns in await admin.fetch(_LOGGED):
        delivery = None if is_gone or columns[_WIDTH] is None else tuple(columns[_WIDTH:])
        kept = tuple(columns[:_WIDTH])
        if is_gone:
            # What belonged to it was deleted first.
            place = 1 + COLUMNS.index("request_kept")
            kept = (*kept[:place], False, *kept[place + 1 :])
        record = decode(kept, delivery, kinds.get(kind_of(kept)))
        record = replace(record, response=tombstone_response(record.response))
        waits = State.ACCEPTED if is_accepted else State.DEAD_LETTER if is_dead else None
        version = Version(number, at_us, None if is_gone else record, waits, has_request, made_by)
        versions = history.versions.setdefault(record.identity.operation_id, [])
        if versions and versions[-1].made_by == made_by and versions[-1].record is None:
            # An operation took the place of one that was over.
            versions.pop()
        if not (versions and versions[-1].made_by == made_by):
            versions.append(version)
    history.answered = frozenset(
        row["token"] for row in await admin.fetch("SELECT token FROM idempotency_gateway.response")
    )
    history.audited = Counter(
        (UUID(bytes=row["id"]), row["event"], row["token"], row["who"])
        for row in await admin.fetch("SELECT id, event, token, who FROM idempotency_gateway.audit")
    )


def main() -> int:
    """The command line; 1 when something was found."""
    parser = argparse.ArgumentParser(description="Random concurrent verbs on a real Postgres, judged by the model.")
    parser.add_argument("--seed", type=int, default=1, help="who does what")
    parser.add_argument("--seconds", type=float, default=12.0, help="for how long")
    asked = parser.parse_args()
    with workspace("fuzz") as directory:
        (directory / "postgres").mkdir()
        server = PostgresServer(PostgresInstallation(directory / "postgres"), directory / "pg")
        server.start()
        try:
            history = asyncio.run(fuzz(asyncio.run(server.new_database()), asked.seed, asked.seconds))
        finally:
            server.crash()
    faults = judge(history)
    print(f"seed {asked.seed}: {history.summary()}")
    print("\n".join(faults) or "nothing is wrong")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
