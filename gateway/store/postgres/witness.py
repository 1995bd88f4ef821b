"""A link to Postgres over which operations are changed, and its witness.

It owns the link's number: how a new connection gets it, and that it is noted before anybody hears what it stands for.
What the numbers prove, `epoch` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID, uuid4

from gateway.store.base import Indefinite, NotApplied
from gateway.store.epoch import WitnessNote, memory_digest
from gateway.store.postgres.dialer import Dialer, Met
from gateway.store.postgres.link import Connection
from gateway.store.postgres.statements import load

_RAISE: Final = load("raise_witness")
_ADD: Final = load("add_witness")
_BEHIND: Final = "PostgreSQL lacks what it acknowledged, and may have done this in an older state"


class WitnessedLink:
    """Statements over one link, each of which raises the link's witness where it changes an operation.

    Where the store was given no files, nothing is raised or noted.
    """

    def __init__(
        self, dialer: Dialer, place: int, clock_us: Callable[[], int | None], *, is_compared: bool = False
    ) -> None:
        """`place` is the link's in the files. With `is_compared` each statement is said to a memory that was compared,
        also behind a pooler.
        """
        self._dialer = dialer
        self._files = dialer.witness_files
        self._place = place
        self._clock_us = clock_us
        self._is_compared = is_compared
        self._id: UUID | None = None
        self._number = 0
        self._memory = b""
        self.link = dialer.link(None if self._files is None else self._register)

    async def fetch(self, query: str, *arguments: Any) -> Sequence[Any]:
        """One statement whose last parameter, the link, is added here, and whose rows begin with the time and end with
        the witness's number. Raises as `Link.fetch`.
        """

        async def say(connection: Connection) -> Sequence[Any]:
            # Which id it is, is known once there is a connection.
            return await connection.fetch(query, *arguments, self._id)

        rows = await (self._dialer.run_compared(self.link, say) if self._is_compared else self.link.run(say))
        if rows and rows[0][-1] is not None:
            self._acknowledge(rows[0][-1], rows[0][0])
        return rows

    async def touch(self) -> None:
        """Raise the witness for what was found done before: the number that comes back stands for that too.

        Raises as `Link.fetch`.
        """
        if self._files is None:
            return
        rows = await self.link.run(lambda connection: connection.fetch(_RAISE, self._clock_us(), self._id))
        if not rows:
            self._refuse()
        self._acknowledge(rows[0]["number"], rows[0]["now_us"])

    async def _register(self, connection: Connection, met: Met | None) -> None:
        """Give a new connection the link's witness, or one of its own while another may still be raising that."""
        if met is None or self._files is None:
            raise NotApplied("the store is not open")
        rows = await connection.fetch(_RAISE, self._clock_us(), self._id) if self._id is not None else []
        if not rows:
            self._id, self._number = uuid4(), 0
            rows = await connection.fetch(_ADD, self._clock_us(), self._id)
        self._memory = memory_digest(met.epoch.identity)
        self._acknowledge(rows[0]["number"], rows[0]["now_us"])
        self._files.cover(met.reading)

    def _acknowledge(self, number: int, now_us: int) -> None:
        if self._files is None or self._id is None:
            return
        if number <= self._number:
            self._refuse()
        self._number = number
        self._files.write(self._place, WitnessNote(self._id, number, now_us, self._files.beyond, self._memory))

    def _refuse(self) -> None:
        """The next connection is compared, and will show what became of the store. Raises `Indefinite`."""
        self.link.drop()
        raise Indefinite(_BEHIND)
