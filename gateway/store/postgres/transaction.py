"""A transaction for work that runs in a thread, and reads, decides and writes as if statements were plain calls.

Theory of operation
-------------------
A connection belongs to the event loop. Each link has a thread beside it, for the work of its transactions; there is one
at a time. A statement of that work is handed to the loop, and the thread waits for it. Every wait of the connection has
a limit (`connection`), so the thread is never left waiting, and a caller that is cancelled aborts the connection, which
ends the work at its next statement.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import cache, partial
from typing import Any, Final, TypeVar

from gateway.core.operation import Accept, Command, Record, microseconds
from gateway.store.base import boot_seconds
from gateway.store.postgres.connection import Connection, ServerRefused
from gateway.store.postgres.statements import load, qualified, statement_texts
from gateway.store.relational.executor import Cursor
from gateway.store.relational.rows import Row
from gateway.store.relational.statements import WRITTEN, of_many
from gateway.store.worker import Worker

T = TypeVar("T")

# Somebody else changes what is locked, and the next sweep finds it.
_TEXTS: Final = {
    **statement_texts(),
    "lock_due": f"{load('lock_due')} SKIP LOCKED",
    "select_paused_expiring": f"{load('select_paused_expiring')} FOR UPDATE OF d, o SKIP LOCKED",
}
_CLOCK: Final = load("clock")
_DRAW: Final = load("draw_tokens")
_PARAMETER: Final = re.compile(r"\$(\d+)")
# How long a gateway that only looks goes by its own clock, so that it asks no more statements than it has to.
_CLOCK_SECONDS: Final = 30.0
_SERIALIZATION_FAILURE: Final = "40001"


class Transaction:
    """A `relational.executor.Cursor`, for the thread."""

    first_row = b""
    last_row = b"\xff" * 17
    has_bodies_apart = False
    is_remote = True
    is_serial = True

    def __init__(self, connection: Any, now_us: int, tokens_expected: int) -> None:
        self.now_us = now_us
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._tokens_expected = tokens_expected
        self._tokens: list[int] = []

    def _wait(self, statement: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(statement, self._loop).result()

    def rows(self, statement: str, bindings: Sequence[Any] = (), /) -> list[Row]:
        return [tuple(row) for row in self._wait(self._connection.fetch(_TEXTS[statement], *bindings))]

    def together(self, queries: Sequence[tuple[str, Sequence[Any]]], /) -> list[list[Row]]:
        if not queries:
            return []
        text = _together(tuple((name, len(bindings)) for name, bindings in queries))
        (found,) = self._wait(self._connection.fetch(text, *(each for _, bindings in queries for each in bindings)))
        return [[tuple(row) for row in rows] for rows in found]

    def row(self, statement: str, bindings: Sequence[Any] = (), /) -> Any:
        return self._wait(self._connection.fetchrow(_TEXTS[statement], *bindings))

    def among(self, statement: str, keys: Sequence[Any], /, *bindings: Any) -> list[Row]:
        return self.rows(statement, (keys, *bindings))

    def hold(self, _keys: Iterable[bytes], /) -> None:
        """Nothing: of two that need the same, one is refused."""

    def change(self, statement: str, bindings: Sequence[Any] = (), /) -> int:
        return self._execute(_TEXTS[statement], *bindings)

    def _execute(self, query: str, *bindings: Any) -> int:
        return int(self._wait(self._connection.execute(query, *bindings)).rpartition(" ")[2])

    def change_all(self, statement: str, bindings: Sequence[Sequence[Any]], /) -> None:
        if not bindings:
            return
        if statement not in WRITTEN:
            self._wait(self._connection.executemany(_TEXTS[statement], bindings))
            return
        text, arrays = of_many(statement, bindings)
        number = self._execute(qualified(text), *arrays)
        if statement == "insert_operation" and number < len(bindings):
            raise ServerRefused("another record came in between", _SERIALIZATION_FAILURE)

    def due(self, statement: str, bindings: Sequence[Any], /) -> list[Row]:
        found = sorted(operation_id for (operation_id,) in self.rows(statement, bindings))
        return self.among("lock_due", found) if found else []

    def state(self) -> object:
        return self._connection

    def begin_tokens(self) -> None:
        """Nothing: a sequence has them."""

    def draw(self, record: Record | None = None, command: Command | None = None, /) -> int:
        least = 0 if record is None else record.token
        if isinstance(command, Accept) and command.lane is not None:
            least = max(least, self.row("select_last_in_lane", (command.lane,))[0] or 0)
        while True:
            if not self._tokens:
                drawn = self._wait(self._connection.fetch(_DRAW, max(self._tokens_expected, 1)))
                self._tokens = [token for (token,) in reversed(drawn)]
            # Those that were drawn before the record's lock was had may be too low.
            if (token := self._tokens.pop()) > least:
                return token

    def take_back_token(self) -> None:
        """Nothing: tokens may be left out."""

    def keep_tokens(self) -> None:
        """Nothing: a sequence has them."""

    def forget_token(self, _token: int, /) -> None:
        """Nothing: a sequence goes on."""


@cache
def _together(queries: Sequence[tuple[str, int]]) -> str:
    """One statement with the rows of each of these, by their names and how many parameters they have."""
    texts, first = [], 0
    for name, number in queries:
        text = _PARAMETER.sub(partial(_moved, first), load(name))
        texts.append(f"ARRAY(SELECT q FROM ({text}) AS q)")  # noqa: S608
        first += number
    return f"SELECT {', '.join(texts)}"


def _moved(by: int, parameter: re.Match[str]) -> str:
    return f"${int(parameter.group(1)) + by}"


class Thread:
    """The thread beside a link, which begins with its first work."""

    def __init__(self, name: str, clock_us: Callable[[], int | None]) -> None:
        self._name = name
        self._clock_us = clock_us
        self._worker: Worker | None = None
        # The server's clock when it was asked last, and the host's.
        self._asked = (0, float("-inf"))

    async def work(
        self, connection: Connection, work: Callable[[Cursor], T], tokens_expected: int = 0, *, only_reads: bool = False
    ) -> T:
        """Do this work inside a transaction of this connection. Raises what the driver and the work raise."""
        now_us = await self._now_us(connection, only_reads=only_reads)
        if self._worker is None:
            self._worker = Worker(self._name)
        return await self._worker.run(work, Transaction(connection, now_us, tokens_expected))

    async def _now_us(self, connection: Connection, *, only_reads: bool) -> int:
        """The store's clock, of what only reads as the host's clock has gone on since."""
        if (now_us := self._clock_us()) is not None:
            return now_us
        (asked_us, asked_at), now = self._asked, boot_seconds()
        if only_reads and now - asked_at < _CLOCK_SECONDS:
            return asked_us + microseconds(now - asked_at)
        ((now_us,),) = await connection.fetch(_CLOCK, None)
        self._asked = (now_us, boot_seconds())
        return int(now_us)

    async def stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop(lambda: None)
