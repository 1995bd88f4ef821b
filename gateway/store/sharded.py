"""A durable store of several shards, each with a memory of its own: what fails in one concerns its keys alone.

Theory of operation
-------------------
A shard is a whole store for the operations that it has. Verbs about one operation go to its shard. Those about all go
to each: a list is refused while a shard is missing, but for what recovery looks for, and every shard does its upkeep
although another is missing. In front of the shards of a gateway there is a guard each (`GuardedShards`), so that a
flush or a lossy failover of one server is a lost memory for its own keys, and a server that cannot be reached leaves
the others. An error says whether it is of one shard (`StoreError.is_partial`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast
from uuid import UUID

from gateway.core.operation import Command, Result, SealedRequest, Snapshot, operation_id_of
from gateway.observe.facts import Events, GrantsChanged, MemoryChanged
from gateway.store.base import Indefinite, NotApplied, StartRefused, Store, Watch
from gateway.store.memory.epoch import Amnesia, amnesia_of, memo_of
from gateway.store.memory.guard import EpochGuard
from gateway.store.operations import (
    Agreement,
    AuditEntry,
    Cold,
    Epoch,
    NumberedAudit,
    Query,
    RecipeConflict,
    RecoveryLease,
    RecoveryState,
    Serving,
    Swept,
    Tally,
)
from gateway.store.rekeying import Kept
from gateway.store.relational.inquiry import joined

T = TypeVar("T")
S = TypeVar("S", bound=Store)

# First bytes of ids, which the shards have in equal parts.
_FIRST_BYTES: Final = 256


class ShardedStore(Generic[S]):
    """Satisfies the `Store` protocol, and is its own `cold`; owns the shards, which are in the order of their
    operations' ids. What no shard has goes to the first one, which refuses it."""

    def __init__(self, shards: Sequence[S]) -> None:
        self.shards = shards
        self._swept_first = 0
        # Those whose last call failed.
        self._missing: set[int] = set()

    async def start(self) -> None:
        """All of them, or none."""
        started = await asyncio.gather(*(shard.start() for shard in self.shards), return_exceptions=True)
        if failed := [each for each in started if isinstance(each, BaseException)]:
            await self.close()
            raise next((each for each in failed if isinstance(each, StartRefused)), failed[0])

    async def close(self) -> None:
        await asyncio.gather(*(shard.close() for shard in self.shards))

    async def apply(self, command: Command) -> Result:
        place = self._place_of(operation_id_of(command))
        return await self._told(place, self.shards[place].apply(command))

    async def read(self, operation_id: UUID) -> Snapshot:
        return await self._of(operation_id, lambda shard: shard.read(operation_id))

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        return self.shards[self._place_of(operation_id)].watch(operation_id)

    @property
    def cold(self) -> Cold:
        return cast(Cold, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shards[0].cold, name)

    async def sweep(self, limit: int) -> Swept:
        """One shard after the other, each time beginning with the next one. One that is missing is passed over, unless
        all are."""
        swept, failure, is_any = Swept(), None, False
        begin, self._swept_first = self._swept_first, (self._swept_first + 1) % len(self.shards)
        for place in (*range(begin, len(self.shards)), *range(begin)):
            left = limit - (swept.lapsed + swept.retired + swept.collected + swept.expired + swept.others)
            try:
                swept += await self._told(place, self.shards[place].cold.sweep(left))
            except (NotApplied, Indefinite) as error:
                failure = error
                continue
            is_any = True
            if swept.more:
                break
        if failure is not None and not is_any:
            raise failure
        return swept

    async def take_turns(self, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
        """Of the first shard that can be reached: while one is missing, two may have a turn for a moment."""
        for place, shard in enumerate(self.shards[:-1]):
            with suppress(NotApplied, Indefinite):
                return await self._told(place, shard.cold.take_turns(holder, names, lease_us))
        return await self._told(len(self.shards) - 1, self.shards[-1].cold.take_turns(holder, names, lease_us))

    async def leave_turns(self, holder: UUID) -> None:
        await self._all(lambda shard: shard.cold.leave_turns(holder))

    async def tally(self) -> Tally:
        tallies = await self._all(lambda shard: shard.cold.tally())
        in_doubt, sealed = Counter[str](), Counter[str]()
        for each in tallies:
            in_doubt.update(each.in_doubt)
            sealed.update(each.sealed)
        return Tally(in_doubt, max(each.oldest_in_doubt_seconds for each in tallies), sealed)

    async def sealed_examples(self, key_id: str) -> list[Kept]:
        return [kept for found in await self._all(lambda shard: shard.cold.sealed_examples(key_id)) for kept in found]

    async def compare_configuration(self, serving: Serving, *, is_trial: bool = False) -> Agreement:
        """A trial first, so that no shard remembers what another one refuses. The first shard decides which of two at
        once was there first."""
        agreed = await self._all(lambda shard: shard.cold.compare_configuration(serving, is_trial=True))
        if not is_trial and not any(each.conflicts for each in agreed):
            agreed = [await self._told(0, self.shards[0].cold.compare_configuration(serving))]
            if not agreed[0].conflicts:
                agreed = await self._all(lambda shard: shard.cold.compare_configuration(serving))
        conflicts: dict[tuple[Any, ...], RecipeConflict] = {}
        for found in (conflict for each in agreed for conflict in each.conflicts):
            name = (found.service, found.operation, found.is_mode, found.fingerprint_keys)
            before = conflicts.get(name)
            living = found.living if before is None else joined(before.living, found.living)
            conflicts[name] = replace(found, living=living)
        neighbours = dict.fromkeys(neighbour for each in agreed for neighbour in each.neighbours)
        return Agreement(tuple(conflicts.values()), tuple(neighbours))

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        await self._all(lambda shard: shard.cold.note_running(gateway_id, is_running=is_running))

    async def count_without_route(self, service: str, operations: Collection[str]) -> dict[str, int]:
        counted = Counter[str]()
        for each in await self._all(lambda shard: shard.cold.count_without_route(service, operations)):
            counted.update(each)
        return dict(counted)

    async def find(self, query: Query) -> list[Snapshot]:
        found: list[Snapshot] = []
        first = 0 if query.after is None else self._place_of(query.after)
        for place in range(first, len(self.shards)):
            asked = replace(query, limit=query.limit - len(found))
            try:
                found += await self._told(place, self.shards[place].cold.find(asked))
            except (NotApplied, Indefinite):
                # What recovery does not find now it finds later.
                if not query.recoverable:
                    raise
            if len(found) >= query.limit:
                break
        return found

    async def recover(self, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool) -> RecoveryLease | None:
        return await self._of(
            operation_id, lambda shard: shard.cold.recover(operation_id, token, lease_us, is_urgent=is_urgent)
        )

    async def put_off(self, lease: RecoveryLease, pause_us: int, finding: str) -> None:
        await self._of(lease.operation_id, lambda shard: shard.cold.put_off(lease, pause_us, finding))

    async def recovery(self, operation_id: UUID) -> RecoveryState | None:
        return await self._of(operation_id, lambda shard: shard.cold.recovery(operation_id))

    async def read_kept(self, operation_id: UUID) -> SealedRequest | None:
        return await self._of(operation_id, lambda shard: shard.cold.read_kept(operation_id))

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        return await self._of(operation_id, lambda shard: shard.cold.audits(operation_id))

    async def latest_audits(self, before: int | None, limit: int) -> list[NumberedAudit]:
        pages = await self._all(lambda shard: shard.cold.latest_audits(before, limit))
        return sorted((each for page in pages for each in page), key=lambda each: each.number, reverse=True)[:limit]

    async def check_memory(self, links: Collection[UUID] = ()) -> Epoch:
        """That of the shard which lost its memory, if one did; the last token and the generations of all."""
        epochs = await self._all(lambda shard: shard.cold.check_memory(links))
        worst = max(epochs, key=lambda epoch: (bool(epoch.parent), _severity(epoch)))
        generation = "".join(epoch.generation for epoch in epochs)
        return replace(worst, token=max(epoch.token for epoch in epochs), generation=generation)

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        """Accept the loss of every shard that lost its memory, as this memo of one of them says: until when, and by
        whom. Draw only higher tokens in all of them."""
        said = amnesia_of(Epoch("", 0, 0, memo))

        async def begin(shard: S) -> None:
            epoch = await shard.cold.check_memory()
            own = amnesia_of(epoch)
            if epoch.now_us < own.until_us:
                own = replace(own, until_us=said.until_us, by=said.by)
            await shard.cold.begin_epoch(memo_of(own) if own != Amnesia() else b"", max(own.beyond, beyond_token))

        await self._all(begin)

    def _place_of(self, operation_id: UUID) -> int:
        return operation_id.bytes[0] * len(self.shards) // _FIRST_BYTES

    async def _of(self, operation_id: UUID, call: Callable[[S], Awaitable[T]]) -> T:
        place = self._place_of(operation_id)
        return await self._told(place, call(self.shards[place]))

    async def _told(self, place: int, call: Awaitable[T]) -> T:
        """What the call of one shard returns. Its error says whether the others are there."""
        try:
            result = await call
        except (NotApplied, Indefinite) as error:
            self._missing.add(place)
            error.is_partial = len(self._missing) < len(self.shards)
            raise
        self._missing.discard(place)
        return result

    async def _all(self, call: Callable[[S], Awaitable[T]]) -> list[T]:
        """Of every shard. Each is called, also where another one fails."""
        calls = (self._told(place, call(shard)) for place, shard in enumerate(self.shards))
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]


def _severity(epoch: Epoch) -> tuple[bool, int, bool]:
    amnesia = amnesia_of(epoch)
    return epoch.now_us < amnesia.until_us, amnesia.until_us, bool(amnesia.why)


class GuardedShards(ShardedStore[EpochGuard]):
    """A guard in front of each shard. One that cannot be reached at the start is tried on, beside the others."""

    def __init__(self, guards: Sequence[EpochGuard]) -> None:
        super().__init__(guards)
        self._starting: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Raises what all of them do, and `StartRefused` if one does."""
        # The first one decides which of two gateways that start at once was there first.
        first, *others = self.shards
        started = [
            *await asyncio.gather(first.start(), return_exceptions=True),
            *await asyncio.gather(*(guard.start() for guard in others), return_exceptions=True),
        ]
        failed = {place: each for place, each in enumerate(started) if isinstance(each, BaseException)}
        fatal = [each for each in failed.values() if not isinstance(each, NotApplied | Indefinite)]
        if fatal or len(failed) == len(self.shards):
            await self.close()
            raise (fatal or list(failed.values()))[0]
        for place in failed:
            self._missing.add(place)
            refusal = f"shard {place} of the durable store must not be used: %s"
            self._starting.append(asyncio.create_task(self.shards[place].keep_starting(refusal)))

    async def noted_memory(self, operation_id: UUID) -> str:
        """As `EpochGuard.noted_memory`, of the operation's shard."""
        return await self.shards[self._place_of(operation_id)].noted_memory(operation_id)

    async def close(self) -> None:
        starting, self._starting = self._starting, []
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        await super().close()

    @property
    def unshared_seconds(self) -> float:
        """See `EpochGuard`. A store of several shards is Redis itself, and needs no note there."""
        return max(guard.unshared_seconds for guard in self.shards)

    @property
    def is_amnesic(self) -> bool:
        """Whether one of them is."""
        return any(guard.is_amnesic for guard in self.shards)

    async def exchange_notes(self) -> None:
        await self._all(lambda guard: guard.exchange_notes())

    async def compare(self, serving: Serving) -> None:
        """See `EpochGuard.compare`. What one shard refuses no other remembers."""
        try:
            await self._all(lambda guard: guard.compare(serving))
        except BaseException:
            await self.retract()
            raise

    async def retract(self) -> None:
        await self._all(lambda guard: guard.retract())

    def adopt(self, serving: Serving, amnesia_window_us: int) -> None:
        for guard in self.shards:
            guard.adopt(serving, amnesia_window_us)


class ShardEvents:
    """What the guards of a store's shards publish, as if they were one: its memory is lost while one shard's is, and
    it grants nothing while none of them does."""

    def __init__(self, events: Events, of: int) -> None:
        self._events = events
        self._of = of
        self._lost: dict[int, MemoryChanged] = {}
        self._without_grants: set[int] = set()

    def of_shard(self, number: int) -> Events:
        return Events(partial(self._publish, number))

    def _publish(self, number: int, fact: Any) -> None:
        if isinstance(fact, MemoryChanged):
            if fact.is_lost:
                why = f"{fact.why} (shard {number} of {self._of})"
                self._lost[number] = replace(fact, why=why)
            else:
                self._lost.pop(number, None)
            fact = max(self._lost.values(), key=lambda each: each.left_seconds, default=fact)
        elif isinstance(fact, GrantsChanged):
            (self._without_grants.add if fact.why else self._without_grants.discard)(number)
            fact = fact if len(self._without_grants) == self._of else GrantsChanged()
        self._events.publish(fact)
