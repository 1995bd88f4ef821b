"""Opens connections to Postgres through asyncpg: this is the only module that imports the driver.

It owns which server may be used, the settings of a session, whether there is a pooler, which memory a connection may
lead to, and what that memory acknowledged. It knows no command.

Theory of operation
-------------------
A plain connection plans every statement once and by index: the plan must not depend on how full the tables were at the
first execution. Behind pgbouncer no session keeps such settings (`?pgbouncer=true`, or detected): there every statement
is planned on each execution, nothing is prepared, and LISTEN does not work. And since a pooler may switch to another
server silently, each batch of claims or changes there first compares the memory that it is about to change.

The session, and each transaction of more than one statement, has timeouts at the server: a gateway that vanishes in the
middle must not hold locks for longer.

A link that changes operations has a witness in the database. A new connection takes over the link's witness, or gets
another one while the previous connection may still be raising it. The number is noted before the result that it stands
for is returned; `epoch` explains what the numbers prove.

*Time.* When a statement's time is over, its connection is aborted. The statement is not cancelled at the server: a
cancelled commit that waits for a synchronous standby would become visible without being there. A link that could not
connect refuses at once, with the last reason, until its pause is over.

*Which of several hosts.* A dial asks all of them, and waits for none that is silent for long if a primary answers.
While the memory is known, the host that was used last is asked alone first. Of several primaries, the one of the
highest timeline was promoted last; timelines compare only within one system, whose identifier standbys share. A primary
of a lower timeline than one that was met is a former one, which nobody has stopped: what is written there is lost, so
it is not used, even while no other host responds, until the others are taken off the list. Two of the highest were
promoted apart, or copied, and each may have what the other lacks: none is used until one of them is gone. The start
time distinguishes two servers from one server that has two names.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import UUID

import asyncpg

from gateway.store.agreement import check_level
from gateway.store.base import EpochChanged, Indefinite, NotApplied, StartRefused
from gateway.store.memory.epoch import Reading, Witness, WitnessFiles, missing
from gateway.store.operations import Epoch
from gateway.store.postgres.connection import (
    SERVER_MAJOR_MIN,
    Connection,
    Durability,
    Engine,
    ServerRefused,
    connect_fault,
    engine_of,
    fault_of,
    losses,
    transaction,
)
from gateway.store.postgres.statements import Dialect, load, portable_texts, statement_texts
from gateway.store.relational.executor import Cursor

# -- hosts -------------------------------------------------------------------------------------------------------------

# Asked of each host. A standby has no position to write at, so the function for it fails there. A server may keep each
# of these from its users.
IS_STANDBY: Final = "current_setting('in_hot_standby', true) = 'on'"
SYSTEM: Final = "(SELECT system_identifier::text FROM pg_control_system())"
STARTED: Final = "pg_postmaster_start_time()::text"
TIMELINE: Final = f"CASE WHEN {IS_STANDBY} THEN NULL ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END"


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a list. `dsn` may hold a password; `name` is for logs."""

    name: str
    dsn: str


@dataclass(frozen=True, slots=True)
class HostStatus:
    """What a host reported; `timeline` is None for a standby, and 0 where it is not said. `started` distinguishes
    servers of one system."""

    host: Host
    system: str
    started: str
    timeline: int | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why none is used. `is_split` if that needs an operator: two servers take themselves for the primary."""

    why: str
    is_split: bool = False


def hosts_of(url: str) -> list[Host]:
    """The hosts that a URL lists, in its authority or as its option `host`, each as a URL of its own."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    credentials, at, authority = parts.netloc.rpartition("@")
    listed = authority or options.get("host", "")
    names = listed.split(",")
    if len(names) == 1:
        return [Host(listed or "localhost", url)]
    # The gateway looks for the primary itself.
    options.pop("target_session_attrs", None)
    ports = options.get("port", "").split(",")
    if not authority and len(ports) == 1:
        ports *= len(names)
    hosts = []
    for place, name in enumerate(names):
        if authority:
            own = parts._replace(netloc=f"{credentials}{at}{name}", query=urlencode(options))
            hosts.append(Host(name, own.geturl()))
            continue
        port = ports[place] if place < len(ports) else ""
        own = parts._replace(query=urlencode({**options, "host": name, **({"port": port} if port else {})}))
        hosts.append(Host(f"{name}:{port}" if port else name, own.geturl()))
    return hosts


def choose(statuses: Iterable[HostStatus], met: Mapping[str, int]) -> HostStatus | Refusal:
    """The primary to use of these; `met` is the highest timeline that was met of each system."""
    primaries = sorted((each for each in statuses if each.timeline is not None), key=_timeline, reverse=True)
    former = [each for each in primaries if _timeline(each) < met.get(each.system, 0)]
    candidates = [each for each in primaries if each not in former]
    if not candidates:
        if former:
            number, its = met[former[0].system], _timeline(former[0])
            return Refusal(f"{former[0].host.name} is a former primary: it has timeline {its}, and {number} was met")
        return Refusal("no host that responds is a primary")
    # Timelines of different systems do not compare.
    highest = [
        each for each in candidates if each.system != candidates[0].system or each.timeline == candidates[0].timeline
    ]
    if len({(each.system, each.started) for each in highest}) > 1:
        names = " and ".join(each.host.name for each in highest)
        return Refusal(
            f"{names} both accept writes, and neither is known to have what the other has: stop the one that "
            "is not to be used",
            is_split=True,
        )
    return candidates[0]


def _timeline(status: HostStatus) -> int:
    return status.timeline or 0


# -- connections -------------------------------------------------------------------------------------------------------

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

_LOG = logging.getLogger("gateway")

# Between tries to connect: it doubles up to a limit.
_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 1.0
_CLOSE_SECONDS: Final = 1.0
CONNECT_SECONDS: Final = 5.0
COMMAND_SECONDS: Final = 5.0
# Of several hosts, each has this part of the whole time.
_HOST_SHARE: Final = 0.5
# How long silent hosts are waited for if a primary responds.
_SILENT_SECONDS: Final = 1.0
# The server would spend seconds on compiling statements that take milliseconds.
_UNCOMPILED: Final = {"jit": "off"}
# Of small tables it would read all rows, and every transaction would then conflict with every other.
_BY_INDEX: Final = {"enable_seqscan": "off"}
_SETTINGS: Final = {
    # Plan once; see above.
    "plan_cache_mode": "force_generic_plan",
    # Such a plan expects many rows where there are few, and starting a worker takes longer than reading those.
    "max_parallel_workers_per_gather": "0",
    # The snapshot of a statement is not taken before its locks.
    "default_transaction_isolation": "read committed",
    # A backend whose client is gone must not hold its locks for long. While it waits for the rest of a message, no
    # other timeout ends it.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")


Compared = tuple[Epoch, Reading]
"""The memory that a new connection leads to, and the notes that it was compared with."""
Connect = Callable[..., Awaitable[Any]]
Prepare = Callable[[Connection, Compared | None], Awaitable[None]]
"""Called on each new connection; with None while no memory is known."""


class Dialer:
    def __init__(
        self,
        url: str,
        connect_seconds: float = CONNECT_SECONDS,
        command_seconds: float = COMMAND_SECONDS,
        durability: Durability = "server",
        witness_files: WitnessFiles | None = None,
        dialect: Dialect = "postgres",
        clock_us: Callable[[], int] | None = None,
        connect: Connect | None = None,
    ) -> None:
        """`clock_us` and `connect` take the place of the server's clock, and of the driver's function."""
        self.clock_us: Callable[[], int | None] = clock_us or (lambda: None)
        self.dialect: Dialect = dialect
        self.is_portable = dialect == "portable"
        self._driver = connect or asyncpg.connect
        self.engine = Engine.POSTGRESQL
        self.texts = portable_texts() if self.is_portable else statement_texts()
        """The statements of the dialect, for the engine that was met."""
        self._last_drawn = 0
        self.reached = 0
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.pgbouncer = options.pop("pgbouncer", "false").lower() in ("1", "true", "yes", "on")
        address = parts._replace(query=urlencode(options)).geturl()
        # The driver chooses among those of an engine whose nodes are all alike.
        self._hosts = [Host(parts.netloc.rpartition("@")[2], address)] if self.is_portable else hosts_of(address)
        self._used: Host | None = None
        self._met: dict[str, int] = {}
        self._last_split = ""
        self._files = [Path(options[name]) for name in _FILES if options.get(name)]
        self.connect_seconds = connect_seconds
        self.command_seconds = command_seconds
        self._limits = _limits(command_seconds)
        if self.is_portable:
            # Nothing holds a lock for long there, and statements of many nodes have pauses in between.
            del self._limits["lock_timeout"]
            self._limits["idle_in_transaction_session_timeout"] = str(round(command_seconds * 1_000))
        self._durability: Durability = durability
        self.epoch: Epoch | None = None
        """The memory found at the start. A connection to another one is not used."""
        self.seen_token = 0
        self.witness_files = witness_files
        # Host and database only: the text goes to logs.
        self.where = f"PostgreSQL at {parts.netloc.rpartition('@')[2] or options.get('host', 'localhost')}{parts.path}"

    async def dial(self, prepare: Prepare | None, *, compares_notes: bool) -> Connection:
        """Connect to a server that may be used, and call `prepare`."""
        if self.is_portable and self.pgbouncer:
            raise StartRefused(
                "the portable dialect needs sessions of its own: give the server's address, not a pgbouncer's"
            )
        try:
            connection = await (self._connect(self._hosts[0]) if len(self._hosts) == 1 else self._connect_to_primary())
        except (FileNotFoundError, PermissionError, IsADirectoryError):
            # The driver's error does not name the file; read each file of the URL to raise one that does.
            for path in self._files:
                path.read_bytes()
            raise
        try:
            if self.pgbouncer:
                await _learn_types(connection)
            await self._greet(connection)
            compared = await self.compare(connection, compares_notes=compares_notes)
            if prepare is not None:
                await prepare(connection, compared)
        except BaseException:
            connection.terminate()
            raise
        self.reached += 1
        return connection

    async def _greet(self, connection: Connection) -> None:
        """Check that the server is new enough, writable and durable, and that this program may use its schema. Raises
        `StartRefused` for a server or a schema that must not be used, `NotApplied` for a standby."""
        engine = self.engine = await engine_of(connection)
        if engine is not Engine.POSTGRESQL and not self.is_portable:
            raise StartRefused(f"the server is {engine}: write store.dialect: portable")
        if engine in (Engine.POSTGRESQL, Engine.CITUS):
            (row,) = await connection.fetch(load("schema_greeting"))
            if row["major"] < SERVER_MAJOR_MIN:
                raise StartRefused(f"PostgreSQL {row['major']} is too old: {SERVER_MAJOR_MIN} or later is needed")
            for setting, what in losses(row, self._durability).items():
                raise StartRefused(f"PostgreSQL has {setting} = off: {what}")
            if self.is_portable:
                await connection.execute("; ".join(f"SET {name} = {value}" for name, value in _BY_INDEX.items()))
        else:
            (row,) = await connection.fetch(load("schema_greeting_elsewhere"))
        if row["read_only"]:
            raise NotApplied(f"{engine} is read-only: a standby, or a role or database set to read-only")
        if self.is_portable:
            self.texts = portable_texts(is_of_one_row=True) if engine is Engine.CITUS else portable_texts()
        if row["exists"]:
            check_level((await connection.fetch(load("level")))[0]["level"])

    async def check_memory(self, connection: Connection, links: Collection[UUID] = ()) -> Epoch:
        rows = await connection.fetch(self.texts["epoch"], None, [link.bytes for link in links])
        (identity, parent, token, memo, generation, level_, now_us, *_), *_ = rows
        witnesses = {UUID(bytes=row["link"]): row["number"] for row in rows if row["link"] is not None}
        return Epoch(identity, token, now_us, memo, generation, witnesses, parent, level_)

    def draw(self, least: int) -> int:
        """A token of the portable dialect that is no lower than this and higher than all others drawn by this
        process."""
        self._last_drawn = max(least, self._last_drawn + 1)
        return self._last_drawn

    @property
    def can_listen(self) -> bool:
        return not (self.pgbouncer or self.is_portable)

    def settings(self, more: Mapping[str, str] | None = None) -> dict[str, str] | None:
        """Those of a transaction; None for the session's."""
        if self.is_portable:
            return None
        return {**self._limits, **_UNCOMPILED, **(_BY_INDEX if self.pgbouncer else {}), **(more or {})}

    async def compare(self, connection: Connection, *, compares_notes: bool = True) -> Compared | None:
        """Raise `EpochChanged` for another memory than the known one, or an older state of it; None while none is
        known. Also if another gateway changed its memo meanwhile, because that has to be read first. What is known is
        read before the server: a token that is seen, or a number that is acknowledged in between must not look like an
        older state."""
        known, seen_token, files = self.epoch, self.seen_token, self.witness_files if compares_notes else None
        if known is None:
            return None
        reading, beyond = (Reading(), 0) if files is None else (files.read(), files.beyond)
        found = await self.check_memory(connection, [note.link for note in reading.notes])
        engine = self.engine
        if found.identity != known.identity:
            promoted = "" if self.is_portable else ", or to one that was promoted"
            raise EpochChanged(f"the address leads to another {engine} than before{promoted}")
        if found.token < max(known.token, seen_token):
            raise EpochChanged(f"{engine} is in an older state than before")
        if (why := missing(reading.notes, found, beyond)) is not None:
            raise EpochChanged(why)
        if found.memo != known.memo:
            raise EpochChanged(f"another gateway changed the memo of {engine}'s memory")
        return found, reading

    async def connect_ungreeted(self) -> Connection:
        """A connection to the first host that can be reached, whatever it is like. Raises `NotApplied`."""
        errors: list[Exception] = []
        for host in self._hosts:
            try:
                return await self._connect(host)
            except Exception as error:  # noqa: BLE001 -- the next host is tried
                errors.append(error)
        raise connect_fault(_most_specific(errors), self.where)

    def meet(self, identity: str) -> None:
        """Never go back to an earlier timeline than that of this memory. One of another kind of store has none."""
        match identity.split("/"):
            case [_, system, _, timeline]:
                self._met[system] = max(self._met.get(system, 0), int(timeline, 16))

    @property
    def has_several_hosts(self) -> bool:
        return len(self._hosts) > 1

    async def _connect_to_primary(self) -> Connection:
        """Connect to the primary among several hosts. Raises `NotApplied` if there is none, or more than one."""
        if self._used is not None and self.epoch is not None:
            try:
                async with asyncio.timeout(_SILENT_SECONDS):
                    connection, status = await self._ask(self._used)
            except Exception as error:  # noqa: BLE001  whatever it is, the others are asked
                _LOG.debug("%s cannot be used any more: %s", self._used.name, error)
            else:
                if isinstance(choose([status], self._met), HostStatus):
                    return connection
                connection.terminate()
        return await self._survey()

    async def _survey(self) -> Connection:
        asked = [asyncio.create_task(self._ask(host)) for host in self._hosts]
        used = None
        try:
            await asyncio.wait(asked, timeout=_SILENT_SECONDS)
            if not any(status.timeline is not None for _, status in _answers(asked)):
                await asyncio.wait(asked)
            found = _answers(asked)
            chosen = choose([status for _, status in found], self._met)
            self._report_split(chosen)
            if isinstance(chosen, Refusal):
                if not found:
                    raise _most_specific([error for task in asked if (error := task.exception()) is not None])
                raise NotApplied(f"{self.where} cannot be used: {chosen.why}")
            self._met[chosen.system] = max(self._met.get(chosen.system, 0), chosen.timeline or 0)
            self._used = chosen.host
            used = next(connection for connection, status in found if status is chosen)
            return used
        finally:
            for task in asked:
                task.cancel()
            for result in await asyncio.gather(*asked, return_exceptions=True):
                if not isinstance(result, BaseException) and result[0] is not used:
                    result[0].terminate()

    async def _ask(self, host: Host) -> tuple[Connection, HostStatus]:
        connection = await self._connect(host)
        try:
            return connection, await _status_of(connection, host)
        except BaseException:
            connection.terminate()
            raise

    def _report_split(self, chosen: HostStatus | Refusal) -> None:
        why = chosen.why if isinstance(chosen, Refusal) and chosen.is_split else ""
        if why and why != self._last_split:
            _LOG.error("the durable store is not used: %s", why)
        self._last_split = why

    async def _connect(self, host: Host) -> Connection:
        try:
            return await self._open(host)
        except asyncpg.ProtocolViolationError:
            # "unsupported startup parameter": a pooler, which cannot keep our settings.
            if self.pgbouncer or self.is_portable:
                raise
            self.pgbouncer = True
            return await self._open(host)

    async def _open(self, host: Host) -> Connection:
        seconds = self.connect_seconds * (1.0 if len(self._hosts) == 1 else _HOST_SHARE)
        if self.is_portable:
            settings = {"search_path": "idempotency_gateway", **self._limits}
        elif self.pgbouncer:
            settings = {}
        else:
            settings = {**_SETTINGS, **_BY_INDEX, **_UNCOMPILED, **self._limits}
        connection: Any = await self._driver(
            host.dsn,
            timeout=seconds,
            statement_cache_size=0 if self.pgbouncer else 100,
            max_cached_statement_lifetime=0,
            server_settings={"application_name": "idempotency-gateway", **settings},
        )
        return cast("Connection", connection)


class Link:
    """One connection, opened on demand, used by one caller at a time. Belongs to the event loop that uses it."""

    def __init__(
        self,
        dialer: Dialer,
        prepare: Prepare | None = None,
        idle_seconds: float | None = None,
        *,
        compares_notes: bool = True,
    ) -> None:
        """`prepare` is called on each connection. One that was not used for `idle_seconds` is closed. Without
        `compares_notes`, it can be used before the notes were judged, and nothing that it reads may permit a claim."""
        self._dialer = dialer
        self._dial = partial(dialer.dial, prepare, compares_notes=compares_notes)
        self._where = dialer.where
        self._idle_seconds = idle_seconds
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._pause_seconds = 0.0
        self._retry_at = 0.0
        # As the dialer's was when a connection failed: once it is more, the server is back, and the pause is over.
        self._reached_before = 0
        self._last_fault: NotApplied = NotApplied("not connected")

    async def open(self) -> None:
        """Connect now. Raises what `dial` raises of `StoreError`, else `NotApplied`."""
        async with self._turn:
            self._retry_at = 0.0
            await self._connected()

    async def fetch(self, query: str, *arguments: Any, is_compared: bool = True) -> Sequence[Any]:
        """One statement in its own transaction. Raises `ServerRefused` or another `NotApplied`, or `Indefinite`."""
        return await self.on_memory(lambda connection: connection.fetch(query, *arguments), is_compared=is_compared)

    async def on_memory(self, work: Callable[[Connection], Awaitable[T]], *, is_compared: bool = True) -> T:
        """Do this work of one statement on a compared memory, with the session's timeouts. Behind a pooler each
        transaction can reach another server without a reconnection, and no session keeps anything. There this is a
        transaction, in which the memory is compared; without `is_compared`, it is not."""
        dialer = self._dialer
        if not dialer.pgbouncer:
            return await self.run(work)

        async def inside(connection: Connection) -> T:
            async with transaction(connection, dialer.settings()):
                if is_compared:
                    await dialer.compare(connection)
                return await work(connection)

        return await self.run(inside)

    async def run(self, work: Callable[[Connection], Awaitable[T]], seconds: float | None = None) -> T:
        """Do this work on the connection, within `seconds` (default: the time of a command). Raises as `fetch`.
        Cancelling the caller aborts the work and its connection."""
        try:
            async with asyncio.timeout(self._dialer.connect_seconds + self._dialer.command_seconds):
                await self._turn.acquire()
        except TimeoutError:
            raise NotApplied(f"{self._where} is busy") from None
        try:
            try:
                connection = await self._connected()
            except StartRefused as error:
                raise NotApplied(*error.args) from error
            return await self._bounded(connection, work, seconds or self._dialer.command_seconds)
        finally:
            self._turn.release()
            if self._idle_seconds is not None:
                if self._idle_timer is not None:
                    self._idle_timer.cancel()
                self._idle_timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._close_idle)

    def _close_idle(self) -> None:
        self._closing = asyncio.get_running_loop().create_task(self.close())

    async def _bounded(self, connection: Connection, work: Callable[[Connection], Awaitable[T]], seconds: float) -> T:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, connection.terminate)
        # A separate task: if the statement itself were cancelled, the driver would cancel it at the server.
        task = asyncio.ensure_future(work(connection))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            connection.terminate()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()
            raise
        except Exception as error:
            fault = fault_of(error)
            if isinstance(fault, Indefinite):
                connection.terminate()
                if timer.when() <= loop.time():
                    fault = Indefinite(f"{self._where}: no response within {seconds:g} s")
            raise fault from error
        finally:
            timer.cancel()

    async def _connected(self) -> Connection:
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        loop = asyncio.get_running_loop()
        if loop.time() < self._retry_at and self._dialer.reached == self._reached_before:
            last = self._last_fault
            raise last.again(str(last)) if isinstance(last, ServerRefused) else type(last)(*last.args)
        try:
            async with asyncio.timeout(self._dialer.connect_seconds):
                self._connection = await self._dial()
        except Exception as error:
            fault = error if isinstance(error, StartRefused | NotApplied) else connect_fault(error, self._where)
            self._last_fault = fault if isinstance(fault, NotApplied) else NotApplied(str(fault))
            self._reached_before = self._dialer.reached
            self._pause_seconds = min(max(self._pause_seconds * 2, _PAUSE_SECONDS_MIN), _PAUSE_SECONDS_MAX)
            # Jitter, so that the gateways do not all reconnect at the same moment.
            self._retry_at = loop.time() + self._pause_seconds * random.uniform(0.5, 1.5)  # noqa: S311
            raise fault from error
        self._pause_seconds = 0.0
        return self._connection

    def drop(self) -> None:
        """Abort the connection; the next call opens another."""
        if self._connection is not None:
            self._connection.terminate()

    async def close(self) -> None:
        """Close the connection after the work under way, which ends within the time of a command."""
        async with self._turn:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            connection, self._connection = self._connection, None
            if connection is None or connection.is_closed():
                return
            try:
                await connection.close(timeout=_CLOSE_SECONDS)
            except Exception:  # noqa: BLE001 -- a connection that cannot be closed cleanly is aborted
                connection.terminate()


def _answers(asked: Iterable[asyncio.Task[T]]) -> list[T]:
    return [task.result() for task in asked if task.done() and task.exception() is None]


class WitnessedLink(Link):
    """A link whose witness is raised by each statement that changes an operation. Without witness files, nothing is
    raised or noted."""

    def __init__(self, dialer: Dialer, place: int) -> None:
        """`place` is the link's place in the files."""
        super().__init__(dialer, None if dialer.witness_files is None else self._register)
        self._witness = None if dialer.witness_files is None else Witness(dialer.witness_files, place)
        self.is_portable = dialer.is_portable

    @property
    def has_statements_of_many(self) -> bool:
        return self._dialer.engine is not Engine.CITUS

    async def change(self, query: str, *arguments: Any, is_compared: bool = False) -> Sequence[Any]:
        """Execute one statement, whose first parameters are the clock and the link's id. Its rows begin with the time
        and end with the witness's number. With `is_compared`, it runs on a compared memory, also behind a pooler.
        Raises as `fetch`."""

        async def execute(connection: Connection) -> Sequence[Any]:
            # A new connection may have changed the id, so read it here.
            bindings: tuple[Any, ...] = self._bindings()
            if self.is_portable:
                bindings += (None if self._witness is None else self._witness.number, self._dialer.draw(0))
            return await connection.fetch(query, *bindings, *arguments)

        async def run() -> Sequence[Any]:
            return await (self.on_memory(execute) if is_compared else self.run(execute))

        rows = await run()
        if not rows:
            # The witness is not what was acknowledged last, or is gone: the next connection compares, and gets another.
            self.drop()
            rows = await run()
        self.note(rows)
        return rows

    async def raised(self, cursor: Cursor) -> Sequence[Any]:
        """Raise the witness in this transaction; returns what to `note` once that is committed."""
        if self._witness is None:
            return ()
        rows = await cursor.rows("advance_witness", self._bindings())
        if not rows:
            # It was not raised for long, and was deleted. The next connection gets another one.
            self.drop()
            raise NotApplied("the witness of this connection is gone")
        return rows

    async def touch(self) -> None:
        """Raise the witness for a command that took effect before: the new number stands for that, too. Raises as
        `fetch`."""
        if self._witness is None:
            return
        rows = await self.run(lambda connection: connection.fetch(load("advance_witness"), *self._bindings()))
        if not rows:
            self._refuse()
        self.note(rows)

    def _bindings(self) -> tuple[int | None, bytes | None]:
        return self._dialer.clock_us(), None if self._witness is None else self._witness.link.bytes

    async def _register(self, connection: Connection, compared: Compared | None) -> None:
        """Give a new connection the link's witness, or another one while a lost connection may still raise that."""
        if compared is None or self._witness is None:
            raise NotApplied("the store is not open")
        rows: Sequence[Any] = ()
        if self._witness.number and not self.is_portable:
            rows = await connection.fetch(load("raise_witness"), *self._bindings())
        if not rows:
            self._witness.renew()
            rows = await connection.fetch(load("add_witness"), *self._bindings())
        self._witness.stand_for(*compared)
        self.note(rows)

    def note(self, rows: Sequence[Any]) -> None:
        """Acknowledge the number of the witness, with which the rows end, if it was raised."""
        if self._witness is None or not rows or (number := rows[0][-1]) is None:
            return
        if number <= self._witness.number:
            self._refuse()
        self._witness.acknowledge(number, rows[0][0])

    def _refuse(self) -> None:
        """Drop the connection and raise `Indefinite`. The comparison of the next one shows what the store lost."""
        self.drop()
        raise Indefinite(f"{self._dialer.engine} lacks what it acknowledged, and may have done this in an older state")


def _limits(command_seconds: float) -> dict[str, str]:
    """The server's timeouts in milliseconds. A statement's is a little shorter than the client's, so that the server
    refuses first, and it is known that nothing was done. Those for a lock, and for the next statement of a transaction
    that may hold locks, are much shorter, because a batch holds up many unrelated commands."""
    return {
        "statement_timeout": str(round(command_seconds * 900)),
        "idle_in_transaction_session_timeout": str(round(command_seconds * 400)),
        "lock_timeout": str(round(command_seconds * 200)),
    }


def _most_specific(errors: Sequence[E]) -> E:
    """Of the errors of all hosts: one of a server that responded, if any."""
    return next((error for error in errors if getattr(error, "sqlstate", None)), errors[0])


async def _status_of(connection: Connection, host: Host) -> HostStatus:
    system, started, timeline = [await _said(connection, each) for each in (SYSTEM, STARTED, TIMELINE)]
    is_standby = timeline is None and await _said(connection, f"coalesce({IS_STANDBY}, false)")
    return HostStatus(host, system or "", started or host.name, None if is_standby else int(timeline or "0", 16))


async def _said(connection: Connection, asked: str) -> Any:
    """What this expression is; None where the server keeps it from this role."""
    try:
        ((value,),) = await connection.fetch(f"SELECT {asked}")
    except Exception as error:
        fault = fault_of(error)
        if isinstance(fault, ServerRefused) and fault.is_forbidden:
            return None
        raise
    return value


async def _learn_types(connection: Connection) -> None:
    """Make the driver look up the array types once, in a transaction that leaves nothing behind. The driver sets `jit`
    in its session for that, and behind a pooler that session is another client's next. If it cannot, the server
    compiles the look-up."""
    types = ("text", "bytea", "bigint", "boolean")
    wanted = " OR ".join(f"${place}::{name}[] IS NULL" for place, name in enumerate(types, start=1))
    await connection.execute("BEGIN; SET LOCAL jit = off")
    await connection.fetch(f"SELECT ARRAY(SELECT q FROM (SELECT 1) AS q) WHERE {wanted}", *([None] * len(types)))  # noqa: S608
    await connection.execute("ROLLBACK")
