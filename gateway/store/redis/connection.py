"""The border to the Redis driver: what a URL says, one connection, and what a server's errors mean.

Its invariant: a link has one exchange under way at a time, and is closed when one is cut short, so that replies are
never mixed up. It knows neither records nor eras, nor which of several servers is the right one.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from hiredis import pack_command
from redis import exceptions
from redis.asyncio.connection import AbstractConnection, ConnectionPool, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway.core.immutable import immutable
from gateway.core.message import bracketed
from gateway.core.operation import MICROSECONDS
from gateway.store.base import Indefinite, NotApplied

CONNECT_SECONDS: Final = 1.0
# How long sent data may stay unacknowledged. Without a limit, a closed connection would keep its unsent data for as
# long as the peer reads nothing.
_UNSENT_SECONDS: Final = 5

# After this long without a message, send a PING; after as long again, the link is dead.
_SILENCE_SECONDS: Final = 10.0

_LUA: Final = Path(__file__).parent / "lua"

_UNSPECIFIC: Final = "ERR"
# `OOM`, `READONLY`, `NOPERM`, …: at the beginning, or behind the `@user_script: 33: -` of Redis 6.2.
_CODE: Final = re.compile(rf"(?:^|: -?)(?!{_UNSPECIFIC}\b)([A-Z]{{3,}})\b")
# A missing permission inside a script comes without a code: with the first text in Redis 6.2 and 7.0, later the second.
_NOT_IN_SCRIPT: Final = ("user executing the script can't", "ACL failure in script")

# Why a server takes no writes, and what an operator can do.
CAUSES: Final = {
    "READONLY": "it is a replica (READONLY); name the primary",
    "OOM": "its memory is full (OOM); raise maxmemory, or let maxmemory-policy evict keys",
    "MISCONF": "it cannot save to its disk (MISCONF)",
    "NOPERM": "its user may not run what the scripts need, or not on these keys or channels (NOPERM); ACL LOG names it",
}

RedisCommand = tuple[str | bytes | int, ...]

# The texts of scripts, by the digest that names one on a server.
_TEXTS: Final[dict[str | bytes | int, bytes]] = {}


def script(name: str) -> str:
    """The digest of a script of `lua`, to be called by EVALSHA through `Link.run`."""
    text = (_LUA / name).read_bytes()
    digest = sha1(text, usedforsecurity=False).hexdigest()
    _TEXTS[digest] = text
    return digest


class Address(NamedTuple):
    """Where a server is; `host` is without the brackets of IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


@immutable
class Access:
    """What a URL says: which servers are asked first, and how to connect to those that they name."""

    kind: str
    """How the masters are found: `sentinel`, `cluster`, or empty where the URL names the one there is."""
    seeds: tuple[Address, ...]
    name: str
    """What the sentinels call the master."""
    options: Mapping[str, Any]
    sentinel_options: Mapping[str, Any]

    def link(self, address: Address) -> Link:
        """A link to a server with data, not yet connected."""
        return _make_link(address, self.options)

    def sentinel_link(self, address: Address) -> Link:
        return _make_link(address, self.sentinel_options)

    async def follow_ask(self, command: RedisCommand, reply: Any, seconds: float) -> Any:
        """The reply; where it is ASK, because the key's slot is on its way to another node, that node's. Raises
        StoreError."""
        if type(reply) is not exceptions.AskError:
            return reply
        link = self.link(Address(reply.host, reply.port))
        try:
            await link.connect()
            # One command after ASKING is all that is allowed: a script comes with its text.
            _, reply = await link.exchange([("ASKING",), _with_text(command)], seconds)
        finally:
            await link.close()
        return reply


def parse(url: str) -> Access:
    """Raises ValueError when the URL is none of Redis's. `gateway.config.address` has the rules, and better errors."""
    parts = urlsplit(url)
    scheme, _, kind = parts.scheme.partition("+")
    login, at, hosts = parts.netloc.rpartition("@")
    seeds = tuple(_address(host, 26379 if kind == "sentinel" else 6379) for host in hosts.split(","))
    name, _, database = parts.path.strip("/").rpartition("/") if kind == "sentinel" else ("", "", parts.path.strip("/"))
    if kind == "sentinel" and not name:
        name, database = database, ""
    query = dict(parse_qsl(parts.query))
    sentinel_login = {
        option: query.pop(f"sentinel_{option}") for option in ("username", "password") if f"sentinel_{option}" in query
    }
    options = {
        **parse_url(f"{scheme}://{login}{at}{seeds[0]}/{database}?{urlencode(query)}"),
        "protocol": 2,
        "decode_responses": False,
        "driver_info": None,
        "health_check_interval": 0,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "socket_timeout": None,
        "socket_connect_timeout": CONNECT_SECONDS,
    }
    if (user_timeout := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        options["socket_keepalive"] = True
        options["socket_keepalive_options"] = {user_timeout: _UNSENT_SECONDS * 1000}
    of_masters = ("username", "password", "db")
    sentinel_options = {key: value for key, value in options.items() if key not in of_masters} | sentinel_login
    access = Access(kind, seeds, name, options, sentinel_options)
    access.link(seeds[0])
    return access


def _address(text: str, port: int) -> Address:
    host, colon, digits = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    return Address(host.strip("[]"), int(digits)) if colon else Address(text.strip("[]"), port)


def _make_link(address: Address, options: Mapping[str, Any]) -> Link:
    """The driver does no retries and no timeouts on it, whatever the URL's options say. Raises ValueError."""
    try:
        pool = ConnectionPool(**{**options, "host": address.host, "port": address.port})
        return Link(pool.make_connection(), address)  # type: ignore[no-untyped-call]
    except TypeError as error:
        raise ValueError(f"an option of the Redis URL is unknown: {error}") from None


class Link:
    """One connection to Redis. The driver's errors end here."""

    def __init__(self, connection: AbstractConnection, address: Address) -> None:
        self.address = address
        self.run_id = b""
        """The server process that the link leads to, as its user has read it."""
        self._connection = connection
        self._lock = asyncio.Lock()

    def __str__(self) -> str:
        """The server and the database, without user and password: the text goes to logs."""
        return f"Redis at {self.address}/{self._connection.db}"

    @property
    def is_open(self) -> bool:
        return bool(self._connection.is_connected)

    async def connect(self, seconds: float = CONNECT_SECONDS) -> None:
        """Connect and log in, unless connected. Raises NotApplied."""
        try:
            async with asyncio.timeout(seconds):
                await self._connection.connect()  # type: ignore[no-untyped-call]
        except (exceptions.RedisError, OSError, ValueError) as error:
            await self.close()
            raise NotApplied(f"{self} cannot be used: {_reason(error)}") from None

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
                    return await self._replies(len(commands))
            except TimeoutError:
                await self.close()
                raise Indefinite(f"no reply from Redis within {seconds:g} s") from None
            except asyncio.CancelledError:
                await self.close()
                raise

    async def run(self, commands: Sequence[RedisCommand], seconds: float) -> list[Any]:
        """`exchange`, for scripts: one that the server has forgotten, or never had, is sent to it."""
        replies = await self.exchange(commands, seconds)
        missing = [place for place, reply in enumerate(replies) if isinstance(reply, exceptions.NoScriptError)]
        if missing:
            # In order, so that each text is sent once.
            sent: set[str | bytes | int] = set()
            again: list[RedisCommand] = []
            for place in missing:
                digest = commands[place][1]
                again.append(commands[place] if digest in sent else _with_text(commands[place]))
                sent.add(digest)
            for place, reply in zip(missing, await self.exchange(again, seconds), strict=True):
                replies[place] = reply
        return replies

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

    async def messages(self) -> AsyncIterator[Any]:
        """What arrives on channels, until the link fails or is silent. Raises Indefinite."""
        is_silent = False
        while True:
            message = await self.receive(_SILENCE_SECONDS)
            if message is not None:
                is_silent = False
                yield message
            elif is_silent:
                raise Indefinite("the link is silent")
            else:
                is_silent = True
                await self.send([("PING",)])

    async def leave(self) -> None:
        """Close the connection after the exchange under way: the next one may lead to another server."""
        async with self._lock:
            await self.close()

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)

    async def _replies(self, number: int) -> list[Any]:
        replies: list[Any] = []
        while len(replies) < number:
            try:
                replies.append(await self._connection.read_response())
            except exceptions.ResponseError as error:
                replies.append(error)
            except (exceptions.RedisError, OSError) as error:
                raise Indefinite(f"the connection to Redis failed: {_reason(error)}") from None
        return replies


def _with_text(command: RedisCommand) -> RedisCommand:
    """The command, with a script's text instead of its digest."""
    return ("EVAL", _TEXTS[command[1]], *command[2:]) if command[0] == "EVALSHA" else command


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


def info_lines(reply: bytes) -> dict[str, str]:
    """What a server says of itself in a reply of `INFO` or `CLUSTER INFO`."""
    return dict(line.split(":", 1) for line in reply.decode("utf-8", "replace").splitlines() if ":" in line)


def run_lines(link: Link, reply: Any) -> dict[str, str]:
    """The lines of a reply of `INFO`, which have the run id. Raises `NotApplied` for a server that does not say it."""
    if error := refusal(reply):
        raise NotApplied(f"{link} refused INFO, which has its run id: {error}")
    lines = info_lines(reply)
    if "run_id" not in lines or "role" not in lines:
        # Without it a restart would go unnoticed.
        raise NotApplied(f"the reply of {link} to INFO has no run id or no role")
    return lines


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
