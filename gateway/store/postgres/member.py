"""What gateways tell each other through Postgres, apart from records: which of them may grant (`Fleet`), which memory
this is, and whose turn it is.

All of it uses one link that is never busy for long and raises no witness: before a promotion is accepted, the notes of
the former server must not be replaced.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from gateway.store.base import NotApplied
from gateway.store.memory.promotion import Joined, Member
from gateway.store.operations import ActivityRow, Epoch
from gateway.store.postgres.connection import Connection, Link, transaction
from gateway.store.postgres.days import Days
from gateway.store.postgres.dialer import Dialer
from gateway.store.postgres.statements import EPOCH_LOCK, load
from gateway.store.relational import inquiry
from gateway.store.relational.executor import Cursor
from gateway.store.relational.store import RelationalStore

_JOIN: Final = load("join")
_TERMS: Final = load("terms")
_BEAT: Final = load("beat")
_MEMBERS: Final = load("members")
_VOUCH: Final = load("vouch")
_ACCEPT: Final = load("accept_promotion")
_BEGIN_EPOCH: Final = load("begin_epoch")
_NOTE_RUNNING: Final = load("note_running")
_NOTE_STOPPED: Final = load("note_stopped")
_LEASE_TURNS: Final = load("lease_turns")
_SAVE_ACTIVITY: Final = load("upsert_activity")


class Members(RelationalStore):
    """These verbs of `Fleet` and of `ManagedStore`."""

    is_portable: bool
    _dialer: Dialer
    _days: Days
    """Its longest window is told to whoever makes partitions."""

    @property
    @abstractmethod
    def _link(self) -> Link:
        """The one for all this. Raises `NotApplied` while the store is not started."""

    @abstractmethod
    async def _note(self, work: Callable[[Cursor], Awaitable[Any]]) -> Any:
        """Do this work in a transaction of that link."""

    async def check_memory(self, links: Collection[UUID] = ()) -> Epoch:
        epoch = await self._link.run(lambda connection: self._dialer.check_memory(connection, links))
        self._know_memo(epoch.memo)
        return epoch

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        if self.is_portable:
            await super().begin_epoch(memo, beyond_token)
        else:
            await self._locked(_BEGIN_EPOCH, memo, beyond_token)
        self._know_memo(memo)

    def _know_memo(self, memo: bytes) -> None:
        """Remember the memo that this store has read or written; a connection that finds another one is not used."""
        if self._dialer.epoch is not None and self._dialer.epoch.memo != memo:
            self._dialer.epoch = replace(self._dialer.epoch, memo=memo)

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        if self.is_portable:
            await super().note_running(gateway_id, is_running=is_running)
        elif is_running:
            arguments = self._dialer.clock_us(), gateway_id.bytes, self._days.longest_us
            await self._fetch(_NOTE_RUNNING, *arguments, is_compared=False)
        else:
            # Flushed: who stays on the list has to vouch before a promotion is accepted.
            await self._fetch(_NOTE_STOPPED, gateway_id.bytes, is_compared=False)

    async def take_turns(self, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
        if self.is_portable:
            return await super().take_turns(holder, names, lease_us)
        rows = await self._fetch(_LEASE_TURNS, self._dialer.clock_us(), holder.bytes, sorted(names), lease_us)
        return frozenset(row["name"] for row in rows)

    async def leave_turns(self, holder: UUID) -> None:
        await self._note(lambda cursor: inquiry.leave_turns(cursor, holder))

    async def save_activity(self, service: str, minute: ActivityRow, longer: ActivityRow) -> None:
        # Not over the link for what is slow, which would be opened for it once a minute.
        await self._fetch(_SAVE_ACTIVITY, *inquiry.activity_columns(service, minute, longer))

    async def join(self, gateway_id: UUID, notes: UUID, host: str, boot: str, ended: Collection[UUID]) -> Joined:
        """See `Fleet`, also for the next four."""
        rows = await self._fetch(
            _JOIN, self._dialer.clock_us(), gateway_id.bytes, notes.bytes, host, boot, _bytes(ended)
        )
        if not rows:
            raise NotApplied("the store does not know this gateway any more")
        row = rows[0]
        # The commit was synchronous only if nobody changed the settings before it, as far as that is said.
        (after,) = await self._fetch(_TERMS)
        is_unchanged = row["loaded_at"] is not None and row["loaded_at"] == after["loaded_at"]
        is_synchronous = row["is_synchronous"] and after["is_synchronous"] and is_unchanged
        may_fail_over = row["may_have_standby"] or self._dialer.has_several_hosts
        return Joined(row["beat"], row["was_listed"], is_synchronous, may_fail_over)

    async def beat(self, gateway_id: UUID, silent: Collection[tuple[UUID, int]]) -> tuple[bool, list[Member]]:
        ids, beats = _bytes(each for each, _ in silent), [beat for _, beat in silent]
        rows = await self._fetch(_BEAT, self._dialer.clock_us(), gateway_id.bytes, ids, beats, self._days.longest_us)
        return bool(rows) and rows[0]["is_synchronous"], [_member(row) for row in rows]

    async def members(self) -> list[Member]:
        return [_member(row) for row in await self._fetch(_MEMBERS)]

    async def vouch(self, identity: str, gateway_id: UUID, boot: str, ended: Collection[UUID]) -> None:
        await self._fetch(_VOUCH, identity, gateway_id.bytes, _bytes(ended), boot)

    async def accept_promotion(self, epoch: Epoch, memo: bytes, *, is_trusted: bool) -> bool:
        before, _, _, timeline = epoch.parent.split("/")
        is_done = await self._locked(_ACCEPT, memo, epoch.memo, before, timeline, is_trusted, epoch.identity)
        if is_done:
            self._dialer.epoch = await self.check_memory()
        return bool(is_done)

    async def _locked(self, query: str, *arguments: Any) -> Sequence[Any]:
        """What the statement returns, while nobody else changes which memory this is."""

        async def change(connection: Connection) -> Sequence[Any]:
            async with transaction(connection, {"lock_timeout": "1s"}):
                await connection.execute(f"SELECT pg_advisory_xact_lock({EPOCH_LOCK})")
                return await connection.fetch(query, *arguments)

        return await self._link.run(change)

    async def _fetch(self, query: str, *arguments: Any, is_compared: bool = True) -> Sequence[Any]:
        run = self._dialer.run
        return await run(self._link, lambda connection: connection.fetch(query, *arguments), is_compared=is_compared)


def _member(row: Any) -> Member:
    return Member(UUID(bytes=row["id"]), row["host"], row["beat"], row["seen_us"], row["vouched_for"])


def _bytes(ids: Iterable[UUID]) -> list[bytes]:
    return [each.bytes for each in ids]
