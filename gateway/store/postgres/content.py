"""The contents that claims and acceptances of one transaction claim, where likely duplicates are refused.

It owns the locks of contents, who holds which, and what is written of that. Whether an operation holds its content
follows from its record (`lifecycle.holds_content`); the statement executes that in SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from gateway.core.operation import (
    Accept,
    Applied,
    Claim,
    Command,
    Content,
    Fenced,
    Snapshot,
    content_of,
    operation_id_of,
)
from gateway.store.postgres.connection import Connection
from gateway.store.postgres.statements import load

_LOCK: Final = load("content_locks")
_HOLDERS: Final = load("content_holders")
_HOLD: Final = load("hold_contents")

Taking = Claim | Accept


class Contents:
    """Locked until the end of the transaction, with their holders as of now."""

    def __init__(self, found: Mapping[UUID, tuple[bool, UUID | None]], now_us: int) -> None:
        """`found`: of each operation whether it has a record, and who else holds its content."""
        self._found = found
        self._now_us = now_us
        # Who claimed a content first in this transaction.
        self._taken: dict[bytes, UUID] = {}
        self._held: list[tuple[UUID, bytes, bytes, int]] = []

    @classmethod
    async def lock(cls, connection: Connection, commands: Sequence[Taking], clock_us: int | None) -> Contents:
        ids, digests = list(map(operation_id_of, commands)), [_content(command).digest for command in commands]
        # The first bytes of a digest: two contents that share them wait for one another.
        keys = sorted({int.from_bytes(digest[:8], "big", signed=True) for digest in digests})
        await connection.execute(_LOCK, keys)
        # A statement of its own, because its snapshot has to be later than the locks.
        rows = await connection.fetch(_HOLDERS, clock_us, ids, digests)
        return cls({each: (row[1], row[2]) for each, row in zip(ids, rows, strict=True)}, rows[0][0])

    def is_known(self, command: Taking) -> bool:
        """Whether its operation has a record."""
        return self._found[operation_id_of(command)][0]

    def holder_of(self, command: Command) -> UUID | None:
        """Another operation that holds the content, unless the caller means this one too."""
        content = content_of(command)
        if content is None or content.is_distinct:
            return None
        return self._found[operation_id_of(command)][1] or self._taken.get(content.digest)

    def next_wave(self, commands: Sequence[Taking]) -> tuple[dict[UUID, Fenced], list[Taking], list[Taking]]:
        """Of commands whose operations have no record: the results of those whose content is held, what to execute
        next, and what must wait for that, because it has the same content."""
        refused: dict[UUID, Fenced] = {}
        wave: dict[bytes, Taking] = {}
        rest: list[Taking] = []
        for command in commands:
            holder = self.holder_of(command)
            if holder is not None:
                refused[operation_id_of(command)] = Fenced(Snapshot(None, self._now_us), holder)
            elif wave.setdefault(_content(command).digest, command) is not command:
                rest.append(command)
        return refused, list(wave.values()), rest

    def note(self, command: Command, result: object) -> None:
        """The command has this result. If that took effect just now, its operation holds the content."""
        content = content_of(command)
        if content is None or not isinstance(result, Applied):
            return
        record = result.snapshot.record
        if record is not None and record.fingerprint is not None:
            operation_id = record.identity.operation_id
            self._taken.setdefault(content.digest, operation_id)
            until_us = result.snapshot.now_us + content.within_us
            self._held.append((operation_id, content.digest, record.fingerprint.digest, until_us))

    async def write(self, connection: Connection) -> None:
        """Write who holds what from now on."""
        if self._held:
            await connection.execute(_HOLD, *map(list, zip(*self._held, strict=True)))


def _content(command: Taking) -> Content:
    if command.content is None:
        raise ValueError("the command claims no content")
    return command.content
