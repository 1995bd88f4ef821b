"""What gateways tell each other through Postgres, apart from records: which of them may grant (`Fleet`), which memory
this is, and whose turn it is.

All of it uses one link that is never busy for long and raises no witness: before a promotion is accepted, the notes of
the former server must not be replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from gateway.store.base import NotApplied
from gateway.store.memory.promotion import Joined, Member
from gateway.store.operations import Epoch
from gateway.store.postgres.connection import Connection, Link, transaction
from gateway.store.postgres.days import Days
from gateway.store.postgres.dialer import Dialer
from gateway.store.postgres.statements import EPOCH_LOCK, load

_JOIN: Final = load("join")
_TERMS: Final = load("terms")
_BEAT: Final = load("beat")
_MEMBERS: Final = load("members")
_VOUCH: Final = load("vouch")
_ACCEPT: Final = load("accept_promotion")
_BEGIN_EPOCH: Final = load("begin_epoch")
_NOTE_RUNNING: Final = load("note_running")
_NOTE_STOPPED: Final = load("note_stopped")
_TAKE_TURNS: Final = load("take_turns")
_LEAVE_TURNS: Final = load("leave_turns")


class Members:
    """These verbs of `Fleet` and of `ManagedStore`."""

    def __init__(self, dialer: Dialer, link: Link, days: Days) -> None:
        """Of `days`, the longest window is told to whoever makes partitions."""
        self._dialer = dialer
        self._link = link
        self._days = days

    async def check_memory(self, links: Collection[UUID] = ()) -> Epoch:
        return await self._link.run(lambda connection: self._dialer.check_memory(connection, links))

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        async def begin(connection: Connection) -> None:
            async with transaction(connection, {"lock_timeout": "1s"}):
                await connection.execute(f"SELECT pg_advisory_xact_lock({EPOCH_LOCK})")
                await connection.fetch(_BEGIN_EPOCH, memo, beyond_token)

        await self._link.run(begin)

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        if is_running:
            await self._fetch(_NOTE_RUNNING, self._dialer.clock_us(), gateway_id.bytes, self._days.longest_us)
        else:
            await self._fetch(_NOTE_STOPPED, gateway_id.bytes)

    async def take_turns(self, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
        rows = await self._fetch(_TAKE_TURNS, self._dialer.clock_us(), holder.bytes, sorted(names), lease_us)
        return frozenset(row["name"] for row in rows)

    async def leave_turns(self, holder: UUID) -> None:
        await self._fetch(_LEAVE_TURNS, self._dialer.clock_us(), holder.bytes)

    async def join(self, gateway_id: UUID, notes: UUID, host: str, boot: str, ended: Collection[UUID]) -> Joined:
        rows = await self._compared(
            _JOIN, self._dialer.clock_us(), gateway_id.bytes, notes.bytes, host, boot, _bytes(ended)
        )
        if not rows:
            raise NotApplied("the store does not know this gateway any more")
        row = rows[0]
        # The commit was synchronous only if nobody changed the settings before it, as far as that is said.
        (after,) = await self._compared(_TERMS)
        is_unchanged = row["loaded_at"] is not None and row["loaded_at"] == after["loaded_at"]
        is_synchronous = row["is_synchronous"] and after["is_synchronous"] and is_unchanged
        may_fail_over = row["may_have_standby"] or self._dialer.has_several_hosts
        return Joined(row["beat"], row["was_listed"], is_synchronous, may_fail_over)

    async def beat(self, gateway_id: UUID, silent: Collection[tuple[UUID, int]]) -> tuple[bool, list[Member]]:
        ids, beats = _bytes(each for each, _ in silent), [beat for _, beat in silent]
        rows = await self._compared(_BEAT, self._dialer.clock_us(), gateway_id.bytes, ids, beats, self._days.longest_us)
        return bool(rows) and rows[0]["is_synchronous"], [_member(row) for row in rows]

    async def members(self) -> list[Member]:
        return [_member(row) for row in await self._compared(_MEMBERS)]

    async def vouch(self, identity: str, gateway_id: UUID, boot: str, ended: Collection[UUID]) -> None:
        await self._compared(_VOUCH, identity, gateway_id.bytes, _bytes(ended), boot)

    async def accept_promotion(self, epoch: Epoch, memo: bytes, *, is_trusted: bool) -> bool:
        before, _, _, timeline = epoch.parent.split("/")

        async def accept(connection: Connection) -> bool:
            async with transaction(connection, {"lock_timeout": "1s"}):
                await connection.execute(f"SELECT pg_advisory_xact_lock({EPOCH_LOCK})")
                arguments = memo, epoch.memo, before, timeline, is_trusted, epoch.identity
                return bool(await connection.fetch(_ACCEPT, *arguments))

        return await self._link.run(accept)

    async def _compared(self, query: str, *arguments: Any) -> Sequence[Any]:
        return await self._dialer.run(self._link, lambda connection: connection.fetch(query, *arguments))

    async def _fetch(self, query: str, *arguments: Any) -> Sequence[Any]:
        run = self._dialer.run
        return await run(self._link, lambda connection: connection.fetch(query, *arguments), is_compared=False)


def _member(row: Any) -> Member:
    return Member(UUID(bytes=row["id"]), row["host"], row["beat"], row["seen_us"], row["vouched_for"])


def _bytes(ids: Iterable[UUID]) -> list[bytes]:
    return [each.bytes for each in ids]
