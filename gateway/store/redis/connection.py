"""The border to the Redis driver: one connection, what its errors mean, and the server behind it.

Its invariant: a link has one exchange under way at a time, and is closed when one is cut short, so that replies are
never mixed up. It knows neither records nor scripts, except for the script of the era.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from hiredis import pack_command
from redis import exceptions
from redis.asyncio.connection import AbstractConnection, ConnectionPool, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway.core.operation import MICROSECONDS
from gateway.store.base import Indefinite, NotApplied
from gateway.store.redis.codec import ERA_BYTES

CONNECT_SECONDS: Final = 1.0
# How long sent data may stay unacknowledged. Without a limit, a closed connection would keep its unsent data for as
# long as the peer reads nothing.
_UNSENT_SECONDS: Final = 5

# What two clocks may drift apart, as µs per second; NTP slews by half of it.
_DRIFT_US: Final = 1_000

# As in `lua/era.lua`.
GENERATION_BYTES: Final = 16

_ERA_SCRIPT: Final = (Path(__file__).parent / "lua" / "era.lua").read_bytes()

_UNSPECIFIC: Final = "ERR"
# `OOM`, `READONLY`, `NOPERM`, …: at the beginning, or behind the `@user_script: 33: -` of Redis 6.2.
_CODE: Final = re.compile(rf"(?:^|: -?)(?!{_UNSPECIFIC}\b)([A-Z]{{3,}})\b")
# A missing permission inside a script comes without a code: with the first text in Redis 6.2 and 7.0, later the second.
_NOT_IN_SCRIPT: Final = ("user executing the script can't", "ACL failure in script")

# Why a server takes no writes, and what an operator can do.
_CAUSES: Final = {
    "READONLY": "it is a replica (READONLY); name the primary",
    "OOM": "its memory is full (OOM); raise maxmemory, or let maxmemory-policy evict keys",
    "MISCONF": "it cannot save to its disk (MISCONF)",
    "NOPERM": "its user may not run what the scripts need, or not on these keys or channels (NOPERM)",
}

ROOM_SECONDS: Final = 60.0

_LOG = logging.getLogger("gateway")

RedisCommand = tuple[str | bytes | int, ...]


def make_link(url: str, era_key: str, clock: Callable[[], float]) -> Link:
    """A link, not yet connected. The driver does no retries and no timeouts on it, whatever the URL's options say.

    Raises ValueError when the URL is none of Redis's.
    """
    options: dict[str, Any] = {
        **parse_url(url),
        "protocol": 2,
        "decode_responses": False,
        "driver_info": None,
        "health_check_interval": 0,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "socket_timeout": None,
        "socket_connect_timeout": CONNECT_SECONDS,
    }
    if "path" not in options and (user_timeout := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        options["socket_keepalive"] = True
        options["socket_keepalive_options"] = {user_timeout: _UNSENT_SECONDS * 1000}
    try:
        connection = ConnectionPool(**options).make_connection()  # type: ignore[no-untyped-call]
    except TypeError as error:
        raise ValueError(f"an option of the Redis URL is unknown: {error}") from None
    return Link(connection, era_key, clock)


class Link:
    """One connection to Redis, with what is known of the server behind it. The driver's errors end here."""

    def __init__(self, connection: AbstractConnection, era_key: str, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._era_key = era_key
        self._generation = b""
        self._clock = clock
        self._lock = asyncio.Lock()
        self.run_id = b""
        """The server process that the link leads to, once it was opened."""
        self._time_us = 0
        self._time_seconds = 0.0
        self.era = b""
        """The era of the server; empty while a generation has yet to be reported to it."""
        self.era_seconds = 0.0
        self.refused = ""
        """Why the server took no copies at the last check; empty if it did."""

    @property
    def is_open(self) -> bool:
        return bool(self._connection.is_connected)

    def bind(self, era_key: str, generation: str) -> None:
        """Require an era of this generation (empty: any) under this key. The era is unknown until `refresh_era`."""
        self._era_key, self.era = era_key, b""
        self._generation = sha256(generation.encode()).digest()[:GENERATION_BYTES] if generation else b""

    async def connect(self) -> None:
        """Connect, unless connected. Raises NotApplied."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connection.connect()  # type: ignore[no-untyped-call]
        except (exceptions.RedisError, OSError, ValueError) as error:
            await self.close()
            raise NotApplied(f"Redis at {_where(self._connection)} cannot be used: {_reason(error)}") from None

    async def open(self) -> None:
        """Connect, unless connected, and read the server's run id, era and time. Raises StoreError."""
        if not self.is_open:
            await self.connect()
            (info,) = await self.exchange([("INFO", "server")], CONNECT_SECONDS)
            if error := refusal(info):
                await self.close()
                raise NotApplied(f"Redis refused INFO server, which has its run id: {error}")
            if (run_id := _run_id(info)) != self.run_id:
                # No purge was reported to this server, which may have run beside the previous one.
                self.run_id, self.era = run_id, b""
        await self.refresh_era()

    async def refresh_era(self) -> None:
        """Report the generation if that is pending, and read era and time. Raises StoreError."""
        wanted = (self._era_key, self._generation)
        is_due = self.era == b"" and self._generation != b""
        generation = self._generation.ljust(GENERATION_BYTES, b"\0")
        fresh = secrets.token_hex(ERA_BYTES // 2)
        script = ("EVAL", _ERA_SCRIPT, 1, self._era_key, self.run_id, fresh, generation, int(is_due))
        (reply,) = await self.exchange([script], CONNECT_SECONDS)
        if error := refusal(reply):
            # A server that was made a replica takes no writes: the next connection may lead to the new master.
            await self.leave()
            raise NotApplied(f"Redis at {_where(self._connection)} takes no writes: {_CAUSES.get(error, error)}")
        era, *time, text = reply
        self.note_time(time)
        code = refusal_code(text.decode())
        self.refused = f"Redis at {_where(self._connection)} takes no copies: {_CAUSES.get(code, code)}" if code else ""
        # After a `bind` meanwhile, the next call learns the era.
        if era != self.era and wanted == (self._era_key, self._generation):
            self.era, self.era_seconds = era, self._time_seconds

    def note_time(self, time: Sequence[bytes]) -> None:
        """Take a reading of the server's clock from a reply that has just arrived."""
        self._time_us, self._time_seconds = time_us(time), self._clock()

    def server_us(self, seconds: float) -> int:
        """A lower bound of the server's clock at this boot-time moment."""
        since_seconds = seconds - self._time_seconds
        return self._time_us + int(since_seconds * MICROSECONDS - abs(since_seconds) * _DRIFT_US)

    async def exchange(self, commands: Sequence[RedisCommand], seconds: float) -> list[Any]:
        """Send commands and return their replies; refused commands have exceptions as replies.

        Raises NotApplied when nothing was sent, Indefinite when a reply is missing. Closes the link on a timeout, and
        when the caller is cancelled.
        """
        async with self._lock:
            if not self.is_open:
                raise NotApplied("the connection to Redis is closed")
            try:
                async with asyncio.timeout(seconds):
                    await self.send(commands)
                    return [await self._reply() for _ in commands]
            except TimeoutError:
                await self.close()
                raise Indefinite(f"no reply from Redis within {seconds:g} s") from None
            except asyncio.CancelledError:
                await self.close()
                raise

    async def send(self, commands: Sequence[RedisCommand]) -> None:
        """Send without waiting for a reply. Raises Indefinite."""
        packed = b"".join(map(_pack, commands))
        try:
            await self._connection.send_packed_command(packed, check_health=False)
        except (exceptions.RedisError, OSError, RuntimeError, AttributeError) as error:
            # The connection was reset while idle: uvloop raises RuntimeError; asyncio raises nothing, except for an
            # AttributeError in Python 3.12.1.
            raise Indefinite(f"the connection to Redis failed: {_reason(error)}") from None

    async def receive(self, seconds: float) -> Any:
        """The next message, or None after this many seconds without one. Raises Indefinite."""
        try:
            return await self._connection.read_response(timeout=seconds)
        except (exceptions.RedisError, OSError) as error:
            raise Indefinite(f"the connection to Redis failed: {_reason(error)}") from None

    async def leave(self) -> None:
        """Close the connection after the exchange under way: the next one may lead to another server."""
        async with self._lock:
            await self.close()

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)

    async def _reply(self) -> Any:
        try:
            return await self._connection.read_response()
        except exceptions.ResponseError as error:
            return error
        except (exceptions.RedisError, OSError) as error:
            raise Indefinite(f"the connection to Redis failed: {_reason(error)}") from None


class Room:
    """Logs whether a running server has room for copies: once when it has none, and once when it has room again.

    For the operator only: a full server stays full until one acts, while refused copies are counted and made again from
    the durable store. At its limit the server takes one copy and refuses the next, so room is reported only after it
    has taken all copies for a while. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reported = ""
        self._refused_seconds = 0.0

    def note(self, refused: str) -> None:
        """Take the result of a check: why the server takes no copies, empty if it does."""
        now = self._clock()
        if refused:
            self._refused_seconds = now
            if refused != self._reported:
                self._reported = refused
                _LOG.warning("%s; until then replays come from the durable store", refused)
        elif self._reported and now - self._refused_seconds >= ROOM_SECONDS:
            self._reported = ""
            _LOG.info("Redis takes copies again")


def _where(connection: AbstractConnection) -> str:
    """The server and the database, without user and password: the text goes to logs."""
    place = getattr(connection, "path", None) or f"{getattr(connection, 'host', '')}:{getattr(connection, 'port', '')}"
    return f"{place}/{connection.db}"


def _reason(error: Exception) -> str:
    """Why the connection failed, as the driver or the server describes it, without a password."""
    if isinstance(error, TimeoutError):
        return "no reply in time"
    if isinstance(error, RuntimeError | AttributeError):
        return "the server closed it"
    text = str(error) or type(error).__name__
    # A server that does not know a command quotes its arguments; those of AUTH contain the password.
    return text.partition(", with args")[0] if isinstance(error, exceptions.ResponseError) else text


def _pack(command: RedisCommand) -> bytes:
    # The stub of hiredis wants a tuple of one, and returns nothing.
    return pack_command(command)  # type: ignore[arg-type, no-any-return]


def time_us(time: Sequence[bytes]) -> int:
    """A reply of `TIME` in microseconds."""
    seconds, microseconds = time
    return int(seconds) * MICROSECONDS + int(microseconds)


def _run_id(info: Any) -> bytes:
    """The run id in a reply of `INFO server`. Raises NotApplied: without it a restart would go unnoticed."""
    if isinstance(info, bytes):
        for line in info.splitlines():
            if line.startswith(b"run_id:"):
                return line.removeprefix(b"run_id:")
    raise NotApplied("the reply of Redis to INFO server has no run id")


def refusal(reply: Any) -> str:
    """The code of the server's error; empty if it executed the command."""
    if not isinstance(reply, Exception):
        return ""
    # The driver removes known codes from the text. Redis 6.2 reports any failure in a script as `ERR`.
    code = getattr(reply, "status_code", None)
    if code and code != _UNSPECIFIC:
        return str(code)
    return refusal_code(str(reply)) or type(reply).__name__


def refusal_code(text: str) -> str:
    """The code of an error, wherever a script has put it. The rest of the text may quote what was sent."""
    if any(phrase in text for phrase in _NOT_IN_SCRIPT):
        return "NOPERM"
    code = _CODE.search(text)
    return code.group(1) if code else text.removeprefix(f"{_UNSPECIFIC} ").split(" ", 1)[0]
