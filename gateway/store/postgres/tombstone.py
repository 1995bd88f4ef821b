"""Which records become narrow rows, and when that is safe.

A tombstone has no response, and most of its row is of no use any more. The sweep that writes a tombstone down moves it
to a table of its own, in which a row takes a sixth of the room. This owns what such a row keeps (`Record` says what
not), and the proof that no claim can miss a record on its way.

Theory of operation
-------------------
A claim looks for its key and inserts it in one statement, with one snapshot. An insert notices a row that the snapshot
does not have, but only in its own table. So a statement whose snapshot is from before the key was first used, and which
inserts after the record has left the table, would be granted: the operation would be executed again.

Therefore a record moves only when no statement is under way that could miss it. Whoever writes to the table of
operations locks it (`writers`) before the snapshot is taken, and until the changes can be seen. So once all have ended
that were writing when a token was drawn, every claim with that token or a lower one can be seen; and once all have
ended that were writing at that moment, the snapshot of every statement that may insert has it. That takes no time limit
and no clock: a statement that hangs delays the move.

A record that cannot move yet is written down where it is, and looked at again later. So is one that does not fit: of a
service that no gateway has told of, of one kind too many, or remembered for a part of a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from gateway.core.framing import digest
from gateway.core.identity.operation_id import is_of
from gateway.core.operation import MICROSECONDS, SHORT_DIGEST_BYTES, SHORT_SCOPE_BYTES, Record, State
from gateway.store.level import RECORD_VERSION
from gateway.store.postgres.change import Change, Narrow
from gateway.store.postgres.connection import Connection
from gateway.store.postgres.statements import load

_KEPT_SECONDS_MAX: Final = 2**31 - 1

_WRITERS: Final = load("writers")
_KINDS: Final = load("kinds")
_ADD_KINDS: Final = load("add_kinds")


class Horizon:
    """Up to which token a record may leave the table of operations; 0 while that is not known."""

    def __init__(self) -> None:
        self.token = 0
        # Up to which token every claim can be seen, and what had been drawn at the last look that was waited out.
        self._seen, self._drawn = 0, 0
        self._awaited: frozenset[str] = frozenset()

    async def look(self, connection: Connection) -> None:
        """Move on as far as the statements that are under way allow."""
        for _ in range(_LOOKS):
            ((drawn, writers),) = await connection.fetch(_WRITERS)
            self._awaited &= frozenset(writers)
            if self._awaited:
                return
            self.token, self._seen, self._drawn = self._seen, self._drawn, drawn
            self._awaited = frozenset(writers)
            if self.token == drawn:
                return


# As many as it takes to find out all while nobody writes.
_LOOKS: Final = 3


# What many tombstones have in common: a row of `kind` in the order of its statement. Its digest comes first.
_Kind = tuple[Any, ...]


async def narrowed(
    connection: Connection,
    changes: Sequence[Change],
    horizon: int,
    services: Callable[[Connection], Awaitable[frozenset[str]]],
) -> list[Change]:
    """These changes, in whose transaction the records are locked. Those to tombstones move, if their tokens are not
    beyond the horizon and they fit. `services` are all that the operations may be of."""
    found = list(changes)
    ready = [place for place, each in enumerate(changes) if _is_tombstone(each) and each.row.record.token <= horizon]
    if not ready:
        return found
    known = await services(connection)
    kinds = {place: kind for place in ready if (kind := _kind_of(changes[place].row.record, known)) is not None}
    numbers = await _numbers(connection, sorted(frozenset(kinds.values()))) if kinds else {}
    for place, kind in kinds.items():
        if (number := numbers.get(kind[0])) is not None:
            found[place] = replace(changes[place], narrow=_narrow(changes[place].row.record, number))
    return found


def _is_tombstone(change: Change) -> bool:
    return change.record is not None and change.record.state is State.TOMBSTONE


async def _numbers(connection: Connection, kinds: Sequence[_Kind]) -> dict[bytes, int]:
    """The numbers of these kinds by their digests. They are in one order everywhere, so that no two transactions wait
    for one another."""
    digests = [kind[0] for kind in kinds]
    numbers: dict[bytes, int] = dict(await connection.fetch(_KINDS, digests))
    missing = [kind for kind in kinds if kind[0] not in numbers]
    if missing:
        await connection.execute(_ADD_KINDS, *map(list, zip(*missing, strict=True)))
        numbers = dict(await connection.fetch(_KINDS, digests))
    return numbers


def _kind_of(record: Record, services: Iterable[str]) -> _Kind | None:
    """What the narrow row of this record has in common with others; None if it does not fit one."""
    identity, fingerprint, response = record.identity, record.fingerprint, record.response
    kept_s, rest_us = divmod(_kept_us(record), MICROSECONDS)
    if fingerprint is None or response is None or rest_us or not 0 <= kept_s <= _KEPT_SECONDS_MAX:
        return None
    if min(len(fingerprint.digest), len(fingerprint.raw)) < SHORT_DIGEST_BYTES:
        return None
    service = next((each for each in services if is_of(identity, each, identity.operation)), None)
    if service is None or len(identity.scope_digest) < SHORT_SCOPE_BYTES:
        return None
    numbers = (record.attempts, RECORD_VERSION, response.status)
    names = (service, identity.route, identity.operation, record.last_event.value, fingerprint.key_id)
    digests = (fingerprint.recipe, response.version)
    framed = (*(b"%d" % number for number in numbers), *(name.encode() for name in names), *digests)
    return (digest(b"kind", *framed), *numbers, *names, *digests)


def _kept_us(record: Record) -> int:
    """For how long after its completion it is remembered."""
    return record.remember_until_us - (record.completed_us or 0)


def _narrow(record: Record, kind: int) -> Narrow:
    fingerprint = record.fingerprint
    if fingerprint is None:
        raise ValueError("a narrow tombstone has a fingerprint")
    scope = UUID(bytes=record.identity.scope_digest[:SHORT_SCOPE_BYTES])
    both = fingerprint.digest[:SHORT_DIGEST_BYTES] + fingerprint.raw[:SHORT_DIGEST_BYTES]
    return Narrow(_kept_us(record) // MICROSECONDS, kind, scope, UUID(bytes=both))
