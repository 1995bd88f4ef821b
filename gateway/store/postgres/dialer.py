"""How connections to Postgres are opened, through asyncpg: this is the only module that imports the driver.

It owns what a session is told at its start, whether there is a pooler between, and which memory a connection may lead
to. It knows no command, and holds no connection.

Theory of operation
-------------------
A plain connection is told at its start to plan every statement once and by index: the plan must not depend on how full
the tables were when the first statement came. Behind pgbouncer nothing of that can be said (`?pgbouncer=true`, or
noticed): there every statement is planned as it comes, nothing is prepared, and nobody listens. And since a pooler may
go over to another server without a word, each batch of claims compares there which memory it is about to change.

The server is told for how long it may be at one thing, the session or, behind a pooler, each transaction of more than
one statement: a gateway that vanishes in the middle must not hold locks for longer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg

from gateway.store.operations import Epoch
from gateway.store.postgres.link import Connection, Link
from gateway.store.postgres.schema import check_epoch, greet, look_epoch, transaction
from gateway.store.witness_files import Reading, WitnessFiles

T = TypeVar("T")

CONNECT_SECONDS: Final = 5.0
COMMAND_SECONDS: Final = 5.0

_UNCOMPILED: Final = "SET LOCAL jit = off"
_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")


@dataclass(frozen=True, slots=True)
class Met:
    """The memory that a new connection leads to, and the notes that it was compared with."""

    epoch: Epoch
    reading: Reading


Prepare = Callable[[Connection, Met | None], Awaitable[None]]
"""What is called on a new connection; without a `Met` where no memory is known yet."""


class Dialer:
    """Opens connections as this store needs them."""

    def __init__(
        self,
        url: str,
        connect_seconds: float = CONNECT_SECONDS,
        command_seconds: float = COMMAND_SECONDS,
        accepts_off: Collection[str] = (),
        witness_files: WitnessFiles | None = None,
    ) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.pgbouncer = options.pop("pgbouncer", "false").lower() in ("1", "true", "yes", "on")
        self._dsn = parts._replace(query=urlencode(options)).geturl()
        self._files = [Path(options[name]) for name in _FILES if options.get(name)]
        self._connect_seconds = connect_seconds
        self._command_seconds = command_seconds
        self._limits = _limits(command_seconds)
        self._accepts_off = accepts_off
        self.epoch: Epoch | None = None
        """The memory that was there at the start. A connection to another one is not used."""
        self.seen_token = 0
        self.witness_files = witness_files
        # Host and database only: the text goes to logs.
        self.where = f"PostgreSQL at {parts.netloc.rpartition('@')[2] or options.get('host', 'localhost')}{parts.path}"

    def link(self, prepare: Prepare | None = None) -> Link:
        """A connection that is opened when needed; `prepare` is called on each that it opens."""
        return Link(
            partial(self._dial, prepare),
            self.where,
            connect_seconds=self._connect_seconds,
            command_seconds=self._command_seconds,
        )

    async def _dial(self, prepare: Prepare | None) -> Connection:
        """A connection to a server that may be used, `prepare` called on it."""
        try:
            connection = await self._connect()
        except (FileNotFoundError, PermissionError, IsADirectoryError):
            # The driver does not say which file of the URL it could not read.
            for path in self._files:
                path.read_bytes()
            raise
        except asyncpg.ProtocolViolationError:
            # "unsupported startup parameter": a pooler, which could not keep what we tell a session.
            if self.pgbouncer:
                raise
            self.pgbouncer = True
            connection = await self._connect()
        try:
            if self.pgbouncer:
                await _learn_types(connection)
            await greet(connection, self._accepts_off)
            met = await self._compare(connection)
            if prepare is not None:
                await prepare(connection, met)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def run_compared(self, link: Link, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do this work over this link, on a memory that was compared.

        Behind a pooler the server can be another one with each transaction, and no connection is lost by that: there
        it is compared in the same transaction.
        """
        if not self.pgbouncer:
            return await link.run(work)

        async def compare_and_work(connection: Connection) -> T:
            # In one message: it costs no turn more, and the transaction is never without its limits.
            begin = "; ".join(["BEGIN", *(f"SET LOCAL {name} = {ms}" for name, ms in self._limits)])
            try:
                await connection.execute(begin)
                await self._compare(connection)
                result = await work(connection)
            except BaseException:
                await connection.execute("ROLLBACK")
                raise
            await connection.execute("COMMIT")
            return result

        return await link.run(compare_and_work)

    async def fetch_uncompiled(self, link: Link, query: str, *arguments: Any) -> Sequence[Any]:
        """One statement over this link that looks at many records.

        Behind a pooler, where no session is told so, each is told not to be compiled: the server would spend seconds on
        that every time, for what it then does in milliseconds.
        """
        if not self.pgbouncer:
            return await link.fetch(query, *arguments)

        async def uncompiled(connection: Connection) -> Sequence[Any]:
            async with transaction(connection, lock_timeout="1s"):
                await connection.execute(_UNCOMPILED)
                return await connection.fetch(query, *arguments)

        return await link.run(uncompiled)

    async def _compare(self, connection: Connection) -> Met | None:
        """Raises `EpochChanged` for another memory than the known one; None while none is known.

        What is known is from before the server is asked: a token that is seen meanwhile, or a number that is
        acknowledged, is no sign of an older state.
        """
        known, seen_token, files = self.epoch, self.seen_token, self.witness_files
        if known is None:
            return None
        reading, beyond = (Reading(), 0) if files is None else (files.read(), files.beyond)
        found = await look_epoch(connection, [note.link for note in reading.notes])
        check_epoch(found, known, seen_token, reading.notes, beyond)
        return Met(found, reading)

    async def _connect(self) -> Connection:
        settings = {
            # By index and once, see above; compiling a plan costs more than running it.
            "enable_seqscan": "off",
            "plan_cache_mode": "force_generic_plan",
            "jit": "off",
            **dict(self._limits),
            # A backend whose client is gone must not hold its locks for long; while it waits for the rest of a message
            # no other limit ends it.
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "2",
            "tcp_keepalives_count": "3",
        }
        connection: Any = await asyncpg.connect(
            self._dsn,
            timeout=self._connect_seconds,
            statement_cache_size=0 if self.pgbouncer else 100,
            max_cached_statement_lifetime=0,
            server_settings={"application_name": "idempotency-gateway", **({} if self.pgbouncer else settings)},
        )
        return cast("Connection", connection)


def _limits(command_seconds: float) -> list[tuple[str, str]]:
    """For how many milliseconds the server may be at what.

    A little shorter than a command may take, so that the server's word comes, which says that nothing was done. It
    waits for a lock for much less: a batch holds many up that have nothing to do with it.
    """
    command_ms, lock_ms = round(command_seconds * 900), round(command_seconds * 200)
    return [
        ("statement_timeout", str(command_ms)),
        ("idle_in_transaction_session_timeout", str(command_ms)),
        ("lock_timeout", str(lock_ms)),
    ]


async def _learn_types(connection: Connection) -> None:
    """Let the driver look up the array types once, in a transaction that leaves nothing behind.

    It sets `jit` for that in whatever session it finds itself, which behind a pooler would be somebody else's next; and
    where it cannot, the server spends a second on compiling the look-up.
    """
    trial = connection.transaction()
    await trial.start()
    await connection.execute(_UNCOMPILED)
    await connection.fetch(
        "SELECT WHERE $1::uuid[] IS NULL OR $2::text[] IS NULL OR $3::bytea[] IS NULL OR $4::bigint[] IS NULL"
        " OR $5::smallint[] IS NULL",
        *([None] * 5),
    )
    await trial.rollback()
