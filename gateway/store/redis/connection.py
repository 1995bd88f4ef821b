"""Connections to Redis: what a URL says, a link to a server, what its errors mean, and which masters there are.

It knows neither records nor eras. A link is opened once: who finds it closed opens another one.

*Masters.* A URL names the only one, or sentinels name it, or any node of a cluster names all, with the slots that each
has. Who asks goes on to look at the server that was named: whether it takes writes, and a node of a cluster refuses
slots that it does not have.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import ssl
from binascii import crc_hqx
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import UUID

from hiredis import ProtocolError, Reader, ReplyError, pack_command

from gateway.core import immutable
from gateway.core.message import bracketed
from gateway.core.operation import MICROSECONDS
from gateway.store.base import Indefinite, LocalWatch, NotApplied, StoreError, end_tasks

CONNECT_SECONDS: Final = 1.0
SLOTS: Final = 16384

# After this long without a message, send a PING; after as long again, the link is dead.
_SILENCE_SECONDS: Final = 10.0

_LUA: Final = Path(__file__).parent / "lua"

_UNSPECIFIC: Final = "ERR"
# `OOM`, `READONLY`, `NOPERM`, …: at the beginning, or behind the `@user_script: 33: -` of Redis 6.2.
_CODE: Final = re.compile(rf"(?:^|: -?)(?!{_UNSPECIFIC}\b)([A-Z]{{3,}})\b")
# A missing permission inside a script comes without a code: with the first text in Redis 6.2 and 7.0, later the second.
_NOT_IN_SCRIPT: Final = ("user executing the script can't", "ACL failure in script")

# Why a server cannot be used, or takes no writes, and what an operator can do.
CAUSES: Final = {
    "NOAUTH": "Authentication required (NOAUTH)",
    "READONLY": "it is a replica (READONLY); name the primary",
    "OOM": "its memory is full (OOM); raise maxmemory, or let maxmemory-policy evict keys",
    "MISCONF": "it cannot save to its disk (MISCONF)",
    "NOPERM": "its user may not run what the scripts need, or not on these keys or channels (NOPERM); ACL LOG names it",
}

RedisCommand = tuple[str | bytes | int, ...]

# The stub of hiredis wants a tuple of one, and returns nothing.
_pack = cast(Callable[[RedisCommand], bytes], pack_command)
_OPTIONS: Final = frozenset(("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "sentinel_username", "sentinel_password"))

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
    database: int
    login: tuple[str, ...]
    """User and password, or the password alone, or nothing."""
    sentinel_login: tuple[str, ...]
    tls: Mapping[str, str] | None
    """The options of TLS; None: without it."""

    async def open(self, address: Address, seconds: float = CONNECT_SECONDS, *, is_sentinel: bool = False) -> Link:
        """A link to a server. Raises NotApplied."""
        login, database = (self.sentinel_login, 0) if is_sentinel else (self.login, self.database)
        greeting: list[RedisCommand] = [("AUTH", *login)] if login else []
        greeting += [("SELECT", database)] if database else []
        link = Link(address, database)
        try:
            async with asyncio.timeout(seconds):
                context = None if self.tls is None else _context(self.tls)
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: link, *address, ssl=context)
                for command in greeting:
                    (reply,) = await link.exchange([command], seconds)
                    if isinstance(reply, ReplyError):
                        raise reply
        except BaseException as error:
            link.close()
            if not isinstance(error, ReplyError | StoreError | OSError):
                raise
            # A server that does not know a command quotes its arguments; those of AUTH contain the password.
            why = str(error).partition(", with args")[0] or "no reply in time"
            raise NotApplied(f"{link} cannot be used: {why}") from None
        return link

    async def ask(
        self, address: Address, commands: Sequence[RedisCommand], seconds: float, *, is_sentinel: bool = False
    ) -> list[Any]:
        """The replies, over a link of their own. Raises StoreError."""
        link = await self.open(address, is_sentinel=is_sentinel)
        try:
            return await link.exchange(commands, seconds)
        finally:
            link.close()

    async def follow_ask(self, command: RedisCommand, reply: Any, seconds: float) -> Any:
        """The reply; where it is ASK, because the key's slot is on its way to another node, that node's. Raises
        StoreError."""
        if refusal(reply) != "ASK":
            return reply
        # One command after ASKING is all that is allowed: a script comes with its text.
        asked: list[RedisCommand] = [("ASKING",), _with_text(command)]
        return (await self.ask(_address(str(reply).rpartition(" ")[2], 0), asked, seconds))[1]


def parse(url: str) -> Access:
    """Raises ValueError when the URL is none of Redis's. `gateway.config.leaf` has the rules, and better errors."""
    parts = urlsplit(url)
    scheme, _, kind = parts.scheme.partition("+")
    query = dict(parse_qsl(parts.query))
    if scheme not in ("redis", "rediss") or query.keys() - _OPTIONS:
        raise ValueError("the URL is none of Redis's, or has an option that is unknown")
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = map(unquote, login.partition(":"))
    seeds = tuple(_address(host, 26379 if kind == "sentinel" else 6379) for host in hosts.split(","))
    name, _, database = parts.path.strip("/").rpartition("/") if kind == "sentinel" else ("", "", parts.path.strip("/"))
    if kind == "sentinel" and not name:
        name, database = database, ""
    sentinel_login = _login(query.get("sentinel_username", ""), query.get("sentinel_password", ""))
    tls = query if scheme == "rediss" else None
    return Access(kind, seeds, name, int(database or 0), _login(user, password), sentinel_login, tls)


def _login(user: str, password: str) -> tuple[str, ...]:
    return (user, password) if user else (password,) if password else ()


def _address(text: str, port: int) -> Address:
    host, colon, digits = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    return Address(host.strip("[]"), int(digits)) if colon else Address(text.strip("[]"), port)


def _context(options: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if authorities := options.get("ssl_ca_certs"):
        context.load_verify_locations(authorities)
    if certificate := options.get("ssl_certfile"):
        context.load_cert_chain(certificate, options.get("ssl_keyfile"))
    return context


class Link(asyncio.Protocol):
    """One connection, made by `Access.open`. Replies come in the order of the commands, so exchanges need not wait for
    one another. What comes unasked is a message."""

    def __init__(self, address: Address, database: int) -> None:
        self.address = address
        self._database = database
        self._transport: asyncio.Transport | None = None
        self._reader = Reader()
        # Of each exchange under way, the replies that are there, and how many there will be.
        self._waiting: deque[tuple[asyncio.Future[list[Any]], list[Any], int]] = deque()
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self._is_left = False

    def __str__(self) -> str:
        """The server and the database, without user and password: the text goes to logs."""
        return f"Redis at {self.address}/{self._database}"

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._take(reply)
        except ProtocolError:
            self.close()

    def _take(self, reply: Any) -> None:
        if not self._waiting:
            self._messages.put_nowait(reply)
            return
        future, replies, number = self._waiting[0]
        replies.append(reply)
        if len(replies) == number:
            self._waiting.popleft()
            if not future.done():
                future.set_result(replies)
            if self._is_left and not self._waiting:
                self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection to Redis failed: {error or 'the server closed it'}")

    def _fail(self, why: str) -> None:
        """Close the link: what was sent and has no reply is in doubt."""
        waiting, self._waiting = self._waiting, deque()
        self.close()
        for future, _, _ in waiting:
            if not future.done():
                future.set_exception(Indefinite(why))
        self._messages.put_nowait(Indefinite(why))

    async def exchange(self, commands: Sequence[RedisCommand], seconds: float) -> list[Any]:
        """Send commands and return their replies; refused commands have exceptions as replies.

        Raises NotApplied when nothing was sent, Indefinite when a reply is missing. Where one is late, the link is
        closed for all. Who is cancelled leaves replies that nobody gets.
        """
        if not commands:
            return []
        if not self.is_open:
            raise NotApplied("the connection to Redis is closed")
        self.send(commands)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        self._waiting.append((future, [], len(commands)))
        late = loop.call_later(seconds, self._fail, f"no reply from Redis within {seconds:g} s")
        try:
            return await future
        finally:
            late.cancel()

    async def run(self, commands: Sequence[RedisCommand], seconds: float) -> list[Any]:
        """`exchange`, for scripts: one that the server has forgotten, or never had, is sent to it."""
        replies = await self.exchange(commands, seconds)
        missing = [place for place, reply in enumerate(replies) if refusal(reply) == "NOSCRIPT"]
        if missing:
            again = await self.exchange([_with_text(commands[place]) for place in missing], seconds)
            for place, reply in zip(missing, again, strict=True):
                replies[place] = reply
        return replies

    def send(self, commands: Sequence[RedisCommand]) -> None:
        """Send without waiting for a reply, which is a message. Raises Indefinite."""
        if self._transport is None or self._transport.is_closing():
            raise Indefinite("the connection to Redis failed: it is closed")
        self._transport.write(b"".join(map(_pack, commands)))

    async def messages(self) -> AsyncIterator[Any]:
        """What arrives on channels, until the link fails or is silent. Raises Indefinite."""
        is_silent = False
        while True:
            try:
                async with asyncio.timeout(_SILENCE_SECONDS):
                    message = await self._messages.get()
            except TimeoutError:
                if is_silent:
                    raise Indefinite("no message from Redis, and no reply to PING") from None
                is_silent = True
                self.send([("PING",)])
                continue
            if isinstance(message, Indefinite):
                raise message
            if isinstance(message, ReplyError):
                raise Indefinite(f"Redis refused: {refusal(message)}")
            is_silent = False
            yield message

    def leave(self) -> None:
        """Close the link once the replies are there that are waited for."""
        self._is_left = True
        if not self._waiting:
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _with_text(command: RedisCommand) -> RedisCommand:
    """The command, with a script's text instead of its digest."""
    return ("EVAL", _TEXTS[command[1]], *command[2:]) if command[0] == "EVALSHA" else command


def time_us(time: Sequence[bytes]) -> int:
    """A reply of `TIME` in microseconds."""
    seconds, microseconds = time
    return int(seconds) * MICROSECONDS + int(microseconds)


def info_lines(reply: bytes) -> dict[str, str]:
    """What a server says of itself in a reply of `INFO` or `CLUSTER INFO`."""
    return dict(line.split(":", 1) for line in reply.decode("utf-8", "replace").splitlines() if ":" in line)


def run_lines(link: Link, reply: Any) -> dict[str, str]:
    """The lines of a reply of `INFO`. Raises `NotApplied` for a server that does not say its run id, without which a
    restart would go unnoticed, or its role."""
    if error := refusal(reply):
        raise NotApplied(f"{link} refused INFO, which has its run id: {CAUSES.get(error, error)}")
    lines = info_lines(reply)
    if "run_id" not in lines or "role" not in lines:
        raise NotApplied(f"the reply of {link} to INFO has no run id or no role")
    return lines


def refusal(reply: Any) -> str:
    """The code of the server's error; empty if it executed the command. Redis 6.2 reports any failure in a script as
    `ERR`."""
    if not isinstance(reply, Exception):
        return ""
    return refusal_code(str(reply)) or type(reply).__name__


def refusal_code(text: str) -> str:
    """The code of an error, wherever a script has put it. The rest of the text may quote what was sent."""
    if any(phrase in text for phrase in _NOT_IN_SCRIPT):
        return "NOPERM"
    code = _CODE.search(text)
    return code.group(1) if code else text.removeprefix(f"{_UNSPECIFIC} ").split(" ", 1)[0]


# -- masters -----------------------------------------------------------------------------------------------------------

_ALL_SLOTS: Final = (range(SLOTS),)
# A silent sentinel holds up a look for so long, and no request.
_ASK_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 5.0
_UNDECIDED_SECONDS: Final = 0.25


class Masters(NamedTuple):
    """By master, the slots that it has; and when to look again although nothing has happened."""

    slots: Mapping[Address, Sequence[range]]
    look_seconds: float


def slot_of(key: str) -> int:
    """The slot of a key in a cluster: by the text in its first braces, if there is any."""
    _, opening, rest = key.partition("{")
    tag, closing, _ = rest.partition("}")
    return crc_hqx((tag if opening and closing and tag else key).encode(), 0) % SLOTS


async def find_masters(access: Access, known: Collection[Address] = ()) -> Masters:
    """The masters now; `known` are those of the last look. Raises StoreError."""
    match access.kind:
        case "sentinel":
            return _named(await asyncio.gather(*(_ask_sentinel(access, each) for each in access.seeds)), known)
        case "cluster":
            asked = dict.fromkeys((*known, *access.seeds))
            views = await asyncio.gather(*(_ask_node(access, each) for each in asked))
            # A node that was cut off goes on with what it knew. Each failover, and each slot that moves, raises the
            # epoch.
            best = max((view for view in views if not isinstance(view, str)), default=None, key=lambda view: view[:2])
            if best is None:
                raise NotApplied("; ".join(str(view) for view in views))
            return Masters(best[2], _LOOK_SECONDS)
    return Masters({access.seeds[0]: _ALL_SLOTS}, _LOOK_SECONDS)


async def listen_for_masters(access: Access, wake: Callable[[], None]) -> None:
    """Call `wake` when a server reports another master. Until cancelled, if any server reports one.

    One sentinel is listened to at a time. A report that is lost is made up for by the next look."""
    for seed in itertools.cycle(access.seeds if access.kind == "sentinel" else ()):
        with suppress(StoreError):
            link = await access.open(seed, is_sentinel=True)
            try:
                link.send([("SUBSCRIBE", "+switch-master")])
                async for message in link.messages():
                    if message[0] == b"message" and message[2].split()[:1] == [access.name.encode()]:
                        wake()
            finally:
                link.close()
        await asyncio.sleep(_PAUSE_SECONDS)


def _named(replies: Sequence[Address | str], known: Collection[Address]) -> Masters:
    """The master that most sentinels name, of those that reply."""
    votes = Counter(reply for reply in replies if isinstance(reply, Address))
    if not votes:
        raise NotApplied(f"no sentinel names a master: {'; '.join(map(str, replies))}")
    ((address, number),) = votes.most_common(1)
    if 2 * number <= votes.total() and (kept := [each for each in known if each in votes]):
        # Undecided: they name the new one soon, or the old one again.
        address = kept[0]
    # The others follow the one that has switched within seconds.
    return Masters({address: _ALL_SLOTS}, _LOOK_SECONDS if len(votes) == 1 else _UNDECIDED_SECONDS)


async def _ask_sentinel(access: Access, seed: Address) -> Address | str:
    """The master's address, or why this sentinel names none."""
    asked: list[RedisCommand] = [("SENTINEL", "GET-MASTER-ADDR-BY-NAME", access.name)]
    try:
        (reply,) = await access.ask(seed, asked, _ASK_SECONDS, is_sentinel=True)
    except StoreError as error:
        return str(error)
    match reply:
        case [bytes(host), bytes(port)]:
            return Address(host.decode(), int(port))
        case None:
            return f"the sentinel at {seed} knows no master {access.name}"
    return f"the sentinel at {seed} refused: {refusal(reply) or 'no address'}"


async def _ask_node(access: Access, seed: Address) -> tuple[bool, int, dict[Address, list[range]]] | str:
    """Whether the node of a cluster serves, the epoch, and the masters that it names; or why there is no reply. One
    that has lost its slots says so itself: MOVED."""
    try:
        slots, info = await access.ask(seed, [("CLUSTER", "SLOTS"), ("CLUSTER", "INFO")], CONNECT_SECONDS)
    except StoreError as failure:
        return str(failure)
    server = f"Redis at {seed}/{access.database}"
    if "cluster support disabled" in str(slots):
        return f"{server} is not a node of a cluster; write redis://{seed}"
    if error := refusal(slots) or refusal(info):
        return f"{server} refused CLUSTER SLOTS or CLUSTER INFO: {error}"
    found: dict[Address, list[range]] = {}
    for first, last, (host, port, *_), *_ in slots:
        # Without a host: as the node that was asked.
        address = Address(host.decode() if host and host != b"?" else seed.host, port)
        found.setdefault(address, []).append(range(first, last + 1))
    if not found:
        return f"{server} knows of no slots: the cluster has yet to be made"
    lines = info_lines(info)
    return lines.get("cluster_state") == "ok", int(lines.get("cluster_current_epoch", 0)), found


# -- news --------------------------------------------------------------------------------------------------------------
#
# News between gateways through Redis: one subscribing link per gateway, shared by all waiters.
#
# It keeps the server's subscriptions equal to the open watches, and reconnects by itself. News is a hint and may be
# lost; whenever some may have been, the listeners are woken to read the record. It knows channels, never records. Who
# changes an operation publishes on its channel, and each purge also on that of purges.

_LOG = logging.getLogger("gateway")

KEY_PREFIX: Final = "idempotency-gateway:"
PURGES_CHANNEL: Final = f"{KEY_PREFIX}purges"
CHANGES_CHANNEL: Final = f"{KEY_PREFIX}changes:"
"""Where Redis is the durable store, the id of an operation behind it is the channel of its changes."""

_PURGES: Final = PURGES_CHANNEL.encode()

# How long a new listener waits for its subscription and the link. After that it listens all the same.
_SUBSCRIBE_SECONDS: Final = 0.25

_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5.0


@dataclass(slots=True)
class _Channel:
    """That of an operation with listeners. `missed`: news of it may have been lost."""

    listeners: set[LocalWatch] = field(default_factory=set)
    subscribed: asyncio.Event = field(default_factory=asyncio.Event)
    missed: bool = False

    def wake(self) -> None:
        for listener in self.listeners:
            listener.wake()

    def has_subscribed(self) -> None:
        self.subscribed.set()
        if self.missed:
            self.missed = False
            self.wake()


class News:
    """The listeners by operation, and the link that brings the news."""

    def __init__(self, dial: Callable[[], Awaitable[Link]], channel_of: Callable[[UUID], str]) -> None:
        """`dial` opens a link to any server that has the news; it raises StoreError without one."""
        self._dial = dial
        self._channel_of = channel_of
        self._link: Link | None = None
        self._purge_listeners: list[Callable[[UUID], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._why_refused = ""
        self._channels: dict[bytes, _Channel] = {}
        self._subscribed: set[bytes] = set()
        # What may have to be subscribed or unsubscribed; None while nothing arrives.
        self._changed: set[bytes] | None = None
        self._pause_seconds = _PAUSE_SECONDS_MIN

    def start(self) -> None:
        """Listen until `close`."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        task, self._task = self._task, None
        await end_tasks((task,))

    def on_purge(self, listener: Callable[[UUID], None]) -> None:
        """Call `listener` with each operation whose purge is published."""
        self._purge_listeners.append(listener)

    def wake(self, operation_id: UUID) -> None:
        """Wake the listeners in this process."""
        # Mostly there are none.
        if self._channels and (channel := self._channels.get(self._channel_of(operation_id).encode())) is not None:
            channel.wake()

    def leave_all_but(self, addresses: Collection[Address]) -> None:
        """Go on elsewhere if the link leads to none of these."""
        if self._link is not None and self._link.address not in addresses:
            self._link.close()

    @asynccontextmanager
    async def watch(self, operation_id: UUID) -> AsyncIterator[LocalWatch]:
        """Listen to one operation while the context is open."""
        name = self._channel_of(operation_id).encode()
        if (channel := self._channels.get(name)) is None:
            channel = self._channels[name] = _Channel()
            self._note_change(name)
        watch = LocalWatch()
        channel.listeners.add(watch)
        try:
            if not channel.subscribed.is_set():
                try:
                    async with asyncio.timeout(_SUBSCRIBE_SECONDS):
                        await channel.subscribed.wait()
                except TimeoutError:
                    # The subscription wakes the waiters when it is there.
                    channel.missed = True
            yield watch
        finally:
            channel.listeners.discard(watch)
            if not channel.listeners:
                del self._channels[name]
                self._note_change(name)

    async def _run(self) -> None:
        while True:
            with suppress(StoreError):
                self._link = await self._dial()
                try:
                    await self._listen(self._link)
                finally:
                    self._link.close()
                    self._lose()
            await asyncio.sleep(self._pause_seconds)
            self._pause_seconds = min(2 * self._pause_seconds, _PAUSE_SECONDS_MAX)

    async def _listen(self, link: Link) -> None:
        """Receive until the link fails. Raises StoreError."""
        (reply,) = await link.exchange([("SUBSCRIBE", PURGES_CHANNEL)], CONNECT_SECONDS)
        if why := refusal(reply):
            if why != self._why_refused:
                _LOG.warning("no news between gateways through Redis, so waiters poll: %s", CAUSES.get(why, why))
            self._why_refused = why
            raise NotApplied(f"Redis refused SUBSCRIBE: {why}")
        self._why_refused, self._pause_seconds = "", _PAUSE_SECONDS_MIN
        self._changed = set(self._channels)
        self._subscribe(link)
        async for message in link.messages():
            self._dispatch(message)

    def _dispatch(self, message: Any) -> None:
        match message:
            case [b"message", name, bytes(text)] if name == _PURGES:
                try:
                    operation_id = UUID(text.decode("ascii"))
                except ValueError:
                    return
                for listener in self._purge_listeners:
                    listener(operation_id)
                self.wake(operation_id)
            case [b"message", bytes(name), _] if name in self._channels:
                self._channels[name].wake()
            case [b"subscribe", bytes(name), _] if name in self._subscribed and name in self._channels:
                self._channels[name].has_subscribed()

    def _subscribe(self, link: Link) -> None:
        """Send changed subscriptions to the server, all that gathered meanwhile at once."""
        if (changed := self._changed) is None:
            return
        self._changed = set()
        wanted = changed & self._channels.keys()
        new, old = wanted - self._subscribed, (changed - wanted) & self._subscribed
        self._subscribed = (self._subscribed | new) - old
        # A channel that got a listener again before it was unsubscribed gets no reply: it is subscribed.
        for name in wanted - new:
            self._channels[name].subscribed.set()
        commands: list[RedisCommand] = [("SUBSCRIBE", *new)] if new else []
        commands += [("UNSUBSCRIBE", *old)] if old else []
        # The receiver sees the same failure, after it has read what had still arrived.
        with suppress(StoreError):
            link.send(commands)

    def _note_change(self, name: bytes) -> None:
        if self._changed is not None and self._link is not None:
            if not self._changed:
                asyncio.get_running_loop().call_soon(self._subscribe, self._link)
            self._changed.add(name)

    def _lose(self) -> None:
        """No news arrives any more: wake all waiters, to read their records."""
        if self._changed is not None:
            self._subscribed, self._changed = set(), None
            for channel in self._channels.values():
                channel.missed = True
                channel.subscribed.clear()
                channel.wake()
