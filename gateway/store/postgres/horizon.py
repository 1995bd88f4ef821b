"""Up to which token every claim can be seen.

Theory of operation
-------------------
Whoever writes to the table of operations locks it (`writers`) before the snapshot is taken and before a token is drawn,
until the changes can be seen. So once all have ended that were writing when a token was drawn, every claim with that
token or a lower one can be seen (`seen`); and once all have ended that were writing at that moment, the snapshot of
every statement that may insert has it (`token`). That takes no time limit and no clock: a statement that hangs delays
both.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.store.postgres.connection import Connection, Link
from gateway.store.postgres.statements import load

_WRITERS: Final = load("writers")
# As many as it takes to find out all while nobody writes.
_LOOKS: Final = 3
_TRIES: Final = 20
_PAUSE_SECONDS: Final = 0.05


class Horizon:
    """See the module; 0 while it is not known."""

    def __init__(self) -> None:
        self.token = 0
        self.seen = 0
        # What had been drawn at the last look that was waited out, and who was writing then.
        self._drawn = 0
        self._awaited: frozenset[str] = frozenset()

    async def reach(self, link: Link) -> None:
        """Move on. The first time this waits a little for the statements that are under way; outside transactions,
        whose snapshots may be older."""
        for _ in range(_TRIES):
            await link.run(self._look)
            if self.token or not self._drawn:
                return
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _look(self, connection: Connection) -> None:
        for _ in range(_LOOKS):
            ((drawn, writers),) = await connection.fetch(_WRITERS)
            self._awaited &= frozenset(writers)
            if self._awaited:
                return
            self.token, self.seen, self._drawn = self.seen, self._drawn, drawn
            self._awaited = frozenset(writers)
            if self.token == drawn:
                return
