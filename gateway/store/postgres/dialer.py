"""How connections to Postgres are opened, through asyncpg: this is the only module that imports the driver.

It owns which server may be used, the settings of a session, whether there is a pooler between, which memory
a connection may lead to, and what of that memory was acknowledged. It knows no command.

Theory of operation
-------------------
A plain connection plans every statement once and by index: the plan must not depend on how full the tables were when
the first statement came. Behind pgbouncer no session has such settings (`?pgbouncer=true`, or noticed): there every
statement is planned as it comes, nothing is prepared, and nobody listens. And since a pooler may
go over to another server without a word, each batch of claims or of changes compares there which memory it is about to
change.

The session, and each transaction of more than one statement, limits what the server may take for one thing: a gateway
that vanishes in the middle must not hold locks for longer.

A link over which operations are changed has a witness in the database. A new connection gets the link's, or another one
while the connection before it may still be raising that. Its number is noted before the
result that it stands for is returned; `epoch` explains what the numbers prove.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import UUID, uuid4

import asyncpg

from gateway.store.base import EpochChanged, Indefinite, NotApplied, StartRefused
from gateway.store.epoch import WitnessNote, memory_digest, missing
from gateway.store.operations import Epoch
from gateway.store.postgres.connection import Connection, Link, transaction
from gateway.store.postgres.statements import load, migrations
from gateway.store.witness_files import Reading, WitnessFiles

T = TypeVar("T")

CONNECT_SECONDS: Final = 5.0
COMMAND_SECONDS: Final = 5.0
SERVER_MAJOR_MIN: Final = 14
KNOWN_VERSION: Final = migrations()[-1][0]

# What an acknowledged commit depends on, and what to do about each where it is off. The first two stand in for what
# some storage does by itself: there the server is right to do without, and only who runs it can know.
DURABILITY: Final[Mapping[str, str]] = {
    "fsync": (
        "after a crash of its host it may be corrupt, or have forgotten acknowledged responses. Set it to on; only "
        "where the storage itself keeps every acknowledged commit (as Neon's does), accept it by "
        "store.accept_server_settings: [fsync]"
    ),
    "full_page_writes": (
        "a page that a crash leaves half written is corrupt for good. Set it to on; only where the storage never "
        "leaves a page half written (as ZFS and Neon's do not), accept it by "
        "store.accept_server_settings: [full_page_writes]"
    ),
    "synchronous_commit": (
        "a crash forgets the responses that were acknowledged last. Set it to on, for all or for this role "
        "(ALTER ROLE gateway SET synchronous_commit = on)"
    ),
}

_GREETING: Final = """
SELECT
    current_setting('server_version_num')::integer / 10000 AS major,
    pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' AS read_only,
    current_setting('fsync') AS fsync,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('full_page_writes') AS full_page_writes,
    to_regclass('idempotency_gateway.migration') IS NOT NULL AS exists
"""
_VERSION: Final = "SELECT coalesce(max(version), 0) AS version FROM idempotency_gateway.migration"
_EPOCH: Final = load("epoch")
_RAISE: Final = load("raise_witness")
_ADD: Final = load("add_witness")
_BEHIND: Final = "PostgreSQL lacks what it acknowledged, and may have done this in an older state"
# The server would spend seconds on compiling what it then does in milliseconds.
_UNCOMPILED: Final = {"jit": "off"}
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
            # "unsupported startup parameter": a pooler, which could not keep our settings.
            if self.pgbouncer:
                raise
            self.pgbouncer = True
            connection = await self._connect()
        try:
            if self.pgbouncer:
                await _learn_types(connection)
            await _greet(connection, self._accepts_off)
            met = await self._compare(connection)
            if prepare is not None:
                await prepare(connection, met)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def fetch(self, link: Link, query: str, *arguments: Any) -> Sequence[Any]:
        """One statement over this link, within the limits of a session also where there is none."""
        if not self.pgbouncer:
            return await link.fetch(query, *arguments)
        return await self.transact(link, lambda connection: connection.fetch(query, *arguments))

    async def run_compared(self, link: Link, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do this work, which is one statement, over this link on a memory that was compared.

        Behind a pooler the server can be another one with each transaction, and no connection is lost by that: there
        it is compared in the same transaction.
        """
        return await (self.transact_compared(link, work) if self.pgbouncer else link.run(work))

    async def transact_compared(self, link: Link, work: Callable[[Connection], Awaitable[T]]) -> T:
        """As `run_compared`, always in a transaction."""

        async def compare_and_work(connection: Connection) -> T:
            if self.pgbouncer:
                await self._compare(connection)
            return await work(connection)

        return await self.transact(link, compare_and_work)

    async def transact(
        self, link: Link, work: Callable[[Connection], Awaitable[T]], settings: Mapping[str, str] | None = None
    ) -> T:
        """Do this work over this link in one transaction with these settings."""

        async def inside(connection: Connection) -> T:
            async with transaction(connection, {**self._limits, **_UNCOMPILED, **(settings or {})}):
                return await work(connection)

        return await link.run(inside)

    async def _compare(self, connection: Connection) -> Met | None:
        """Raises `EpochChanged` for another memory than the known one; None while none is known.

        What is known is from before the server is asked: a token that is seen meanwhile, or a number that is
        acknowledged, is no sign of an older state.
        """
        known, seen_token, files = self.epoch, self.seen_token, self.witness_files
        if known is None:
            return None
        reading, beyond = (Reading(), 0) if files is None else (files.read(), files.beyond)
        found = await check_memory(connection, [note.link for note in reading.notes])
        _check_epoch(found, known, seen_token, reading.notes, beyond)
        return Met(found, reading)

    async def _connect(self) -> Connection:
        settings = {
            # By index and once, see above.
            "enable_seqscan": "off",
            "plan_cache_mode": "force_generic_plan",
            **_UNCOMPILED,
            **self._limits,
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


class WitnessedLink:
    """Statements over one link, each of which raises the link's witness where it changes an operation.

    Where the store was given no files, nothing is raised or noted.
    """

    def __init__(
        self, dialer: Dialer, place: int, clock_us: Callable[[], int | None], *, is_compared: bool = False
    ) -> None:
        """`place` is the link's in the files. With `is_compared` each statement goes to a memory that was compared,
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

        async def execute(connection: Connection) -> Sequence[Any]:
            # Which id it is, is known once there is a connection.
            return await connection.fetch(query, *arguments, self._id)

        rows = await (self._dialer.run_compared(self.link, execute) if self._is_compared else self.link.run(execute))
        self._note(rows)
        return rows

    async def transact(self, work: Callable[[Connection, UUID | None], Awaitable[Sequence[Any]]]) -> None:
        """Do this work with the link in one transaction; it returns rows as `fetch` does, with the link's number.

        Raises as `Link.fetch`.
        """
        self._note(await self._dialer.transact_compared(self.link, lambda connection: work(connection, self._id)))

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

    def _note(self, rows: Sequence[Any]) -> None:
        if rows and rows[0][-1] is not None:
            self._acknowledge(rows[0][-1], rows[0][0])

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


def _limits(command_seconds: float) -> dict[str, str]:
    """For how many milliseconds the server may be at what.

    A little shorter than a command may take, so that the server's refusal comes, after which nothing was done. It
    waits for a lock, and for the next statement of a transaction that may hold some, for much less: a batch holds many
    up that have nothing to do with it.
    """
    return {
        "statement_timeout": str(round(command_seconds * 900)),
        "idle_in_transaction_session_timeout": str(round(command_seconds * 400)),
        "lock_timeout": str(round(command_seconds * 200)),
    }


async def _learn_types(connection: Connection) -> None:
    """Let the driver look up the array types once, in a transaction that leaves nothing behind.

    It sets `jit` for that in whatever session it finds itself, which behind a pooler would be somebody else's next; and
    where it cannot, the server compiles the look-up.
    """
    types = ("uuid", "text", "bytea", "bigint", "integer", "smallint", "boolean")
    wanted = " OR ".join(f"${place}::{name}[] IS NULL" for place, name in enumerate(types, start=1))
    await connection.execute("BEGIN; SET LOCAL jit = off")
    await connection.fetch(f"SELECT WHERE {wanted}", *([None] * len(types)))
    await connection.execute("ROLLBACK")


async def _greet(connection: Connection, accepts_off: Collection[str]) -> None:
    """Check that this is a server to entrust operations to, and that its schema is not too new.

    `accepts_off` are the settings of `DURABILITY` that may be off, because the storage does the same by itself.

    Raises `StartRefused` for a server or a schema that must not be used, `NotApplied` for a standby.
    """
    (row,) = await connection.fetch(_GREETING)
    if row["major"] < SERVER_MAJOR_MIN:
        raise StartRefused(f"PostgreSQL {row['major']} is too old: {SERVER_MAJOR_MIN} or later is needed")
    if row["read_only"]:
        raise NotApplied("PostgreSQL is read-only: a standby, or a role or database set to read-only")
    for setting, consequence in DURABILITY.items():
        if row[setting] == "off" and setting not in accepts_off:
            raise StartRefused(f"PostgreSQL has {setting} = off: {consequence}")
    version = (await connection.fetch(_VERSION))[0]["version"] if row["exists"] else 0
    if version > KNOWN_VERSION + 1:
        raise StartRefused(
            f"the schema idempotency_gateway has version {version}, this program knows {KNOWN_VERSION} and serves up "
            f"to {KNOWN_VERSION + 1}: run a newer program"
        )


async def check_memory(connection: Connection, links: Collection[UUID] = ()) -> Epoch:
    """Which memory is behind the connection, with the witnesses of these links."""
    (row,) = await connection.fetch(_EPOCH, None, list(links))
    witnesses = dict(zip(row["links"], row["numbers"], strict=True))
    return Epoch(row["identity"], row["token"], row["now_us"], row["memo"], row["generation"], witnesses)


def _check_epoch(found: Epoch, known: Epoch, seen_token: int, notes: Iterable[WitnessNote], beyond: int) -> None:
    """Raises `EpochChanged` when it is not the memory that was there before, or an older state of it.

    Also when another gateway wrote down meanwhile what became of it: that has to be learnt first. `notes` and `beyond`
    are those of `missing`.
    """
    if found.identity != known.identity:
        raise EpochChanged("behind the address is another PostgreSQL than before, or one that was promoted")
    if found.token < max(known.token, seen_token):
        raise EpochChanged("PostgreSQL is in an older state than before")
    if (why := missing(notes, found, beyond)) is not None:
        raise EpochChanged(why)
    if found.memo != known.memo:
        raise EpochChanged("another gateway wrote down what became of the memory of PostgreSQL")
