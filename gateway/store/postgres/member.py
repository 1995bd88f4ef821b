"""Which workers may grant, as Postgres lists them: `Fleet` over links of the store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final
from uuid import UUID

from gateway.store.base import NotApplied
from gateway.store.operations import Epoch
from gateway.store.postgres.connection import Connection, Link, transaction
from gateway.store.postgres.dialer import Dialer
from gateway.store.postgres.statements import EPOCH_LOCK, load
from gateway.store.promotion import Joined, Member

_JOIN: Final = load("join")
_TERMS: Final = load("terms")
_BEAT: Final = load("beat")
_MEMBERS: Final = load("members")
_VOUCH: Final = load("vouch")
_ACCEPT: Final = load("accept_promotion")


class Members:
    """These verbs of `Fleet`."""

    def __init__(self, dialer: Dialer, beats: Link, others: Link, clock_us: Callable[[], int | None]) -> None:
        """`beats` must never be busy for long. `others` must be one that raises no witness: before a promotion is
        accepted, the notes of the former server must not be replaced."""
        self._dialer = dialer
        self._beats = beats
        self._others = others
        self._clock_us = clock_us

    async def join(self, gateway_id: UUID, notes: UUID, host: str, boot: str, ended: Collection[UUID]) -> Joined:
        rows = await self._compared(self._beats, _JOIN, self._clock_us(), gateway_id, notes, host, boot, list(ended))
        if not rows:
            raise NotApplied("the store does not know this gateway any more")
        row = rows[0]
        # The commit was synchronous only if nobody changed the settings before it.
        (after,) = await self._compared(self._beats, _TERMS)
        is_synchronous = row["is_synchronous"] and after["is_synchronous"] and row["loaded_at"] == after["loaded_at"]
        may_fail_over = row["has_standby"] or self._dialer.has_several_hosts
        return Joined(row["beat"], row["was_listed"], is_synchronous, may_fail_over)

    async def beat(self, gateway_id: UUID, silent: Collection[tuple[UUID, int]]) -> tuple[bool, list[Member]]:
        ids, beats = [each for each, _ in silent], [beat for _, beat in silent]
        rows = await self._compared(self._beats, _BEAT, self._clock_us(), gateway_id, ids, beats)
        return bool(rows) and rows[0]["is_synchronous"], [_member(row) for row in rows]

    async def members(self) -> list[Member]:
        return [_member(row) for row in await self._compared(self._others, _MEMBERS)]

    async def vouch(self, identity: str, gateway_id: UUID, boot: str, ended: Collection[UUID]) -> None:
        await self._compared(self._others, _VOUCH, identity, gateway_id, list(ended), boot)

    async def accept_promotion(self, epoch: Epoch, memo: bytes, *, is_trusted: bool) -> bool:
        before, _, _, timeline = epoch.parent.split("/")

        async def accept(connection: Connection) -> bool:
            async with transaction(connection, {"lock_timeout": "1s"}):
                await connection.execute(f"SELECT pg_advisory_xact_lock({EPOCH_LOCK})")
                arguments = memo, epoch.memo, UUID(before), timeline, is_trusted, epoch.identity
                return bool(await connection.fetch(_ACCEPT, *arguments))

        return await self._others.run(accept)

    async def _compared(self, link: Link, query: str, *arguments: Any) -> Sequence[Any]:
        return await self._dialer.run_compared(link, lambda connection: connection.fetch(query, *arguments))


def _member(row: Any) -> Member:
    return Member(row["gateway_id"], row["host"], row["beat"], row["seen_us"], row["vouched_for"])
