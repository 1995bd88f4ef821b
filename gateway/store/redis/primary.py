"""The master that keeps the operations: links to it, what it promises, and when what it executed is acknowledged.

Its invariant: all links lead to the server process that the store was started on; another one is another memory until
it was compared (`EpochChanged`). It knows neither records nor keys, and of changes what the script replies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, Final

from gateway.store.base import EpochChanged, Indefinite, NotApplied, StartRefused, StoreError
from gateway.store.redis.change import DONE, MEMORY, WITNESS
from gateway.store.redis.connection import CAUSES, Access, Address, Link, RedisCommand, refusal
from gateway.store.redis.masters import masters_of
from gateway.store.redis.promise import LOOK, Server, read

_LOG = logging.getLogger("gateway")

ANOTHER_MEMORY: Final = "the memory of Redis is another one than before: it was flushed, or replaced"
# Replies of a change by which the memory is another one.
_OTHERS: Final[dict[Any, str]] = {
    MEMORY: ANOTHER_MEMORY,
    WITNESS: "Redis lacks changes that it had acknowledged",
}
LOOK_SECONDS: Final = 5.0
READ_SECONDS: Final = 5.0
# How long the disks and the replicas are waited for; beyond it, it is not known whether a command took effect.
KEEP_SECONDS: Final = 2.0
_WRITE_SECONDS: Final = KEEP_SECONDS + 3.0

_CAUSES: Final = {**CAUSES, "OOM": "its memory is full (OOM); raise maxmemory, or let keys be remembered for less long"}
_NOT_DURABLE: Final = "Redis cannot be the durable store"
_ELSEWHERE: Final = frozenset(("READONLY", "MASTERDOWN", "LOADING"))


class Primary:
    """From `start` to `close`. `replicas` is how many may be promoted; None: the configuration does not say.

    `lesson` is a call of the script that changes nothing that matters, with all commands of the others."""

    def __init__(self, access: Access, replicas: int | None, lesson: RedisCommand) -> None:
        self._access = access
        self._masters = masters_of(access)
        self._finding = asyncio.Lock()
        self.replicas = replicas or 0
        self._configured = replicas
        self._lesson = lesson
        self._links: dict[str, Link] = {}
        self._connecting = asyncio.Lock()
        self._found: tuple[Address, ...] = ()
        self._server: Server | None = None
        self._is_open = False
        # Why the memory is another one than at the start.
        self._lost = ""
        self.place = ""
        """Where the server is, as it stays over a restart."""
        self.why_not = ""
        """Why nothing may be acknowledged now; empty if it may."""
        self.opened = 0
        """How often a link to write was opened."""

    @property
    def server(self) -> Server:
        """What the server said last. Raises NotApplied before `start`."""
        if self._server is None:
            raise NotApplied("the store is not open")
        return self._server

    async def start(self) -> None:
        """Connect, and take the server as it is from now on. Raises `StartRefused`, `NotApplied`."""
        self._server, self._is_open, self._lost = None, True, ""
        try:
            link = await self.link("changes")
            # What it has while replicas are missing was acknowledged, and can be served.
            if refused := self.server.why_not(self._configured):
                raise StartRefused(f"{_NOT_DURABLE}: {refused}")
            await self._teach(link)
            # What may not be waited for would never be acknowledged.
            await self.read(self._waiting(), "changes")
        except BaseException:
            await self.close()
            raise

    def require_open(self) -> None:
        """Raise `NotApplied` unless it is started, and `EpochChanged` once another memory was found."""
        if not self._is_open:
            raise NotApplied("the store is not open")
        if self._lost:
            raise EpochChanged(self._lost)

    def lose(self, why: str) -> EpochChanged:
        """What to raise: the memory is another one, and stays so until the next start."""
        self._lost = why
        return EpochChanged(why)

    async def close(self) -> None:
        self._is_open = False
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()
        await self._masters.close()

    async def read(self, commands: Sequence[RedisCommand], link: str = "reads") -> list[Any]:
        """The replies. Raises `NotApplied`, also where the server refuses one of the commands."""
        replies = await _definite((await self.link(link)).exchange(commands, READ_SECONDS))
        for reply in replies:
            if isinstance(reply, Exception):
                raise await self._refused(reply)
        return replies

    async def write(
        self,
        calls: Sequence[RedisCommand],
        link: str = "changes",
        *,
        keeps: bool = True,
        news: Sequence[RedisCommand] = (),
    ) -> list[bool | StoreError]:
        """Execute calls of `Change`s: whether each was done, or what became of it. With `keeps`, it waits until disks
        and replicas have what was done. Raises `NotApplied` and `EpochChanged` where nothing was sent, and
        `Indefinite`. `news` tells other gateways, is sent behind all that, and may be refused."""
        opened = await self.link(link)
        if keeps:
            self.require_promise()
        waiting = self._waiting() if keeps else ()
        replies = await opened.exchange([*calls, *waiting, *news], _WRITE_SECONDS)
        del replies[len(calls) + len(waiting) :]
        doubt, is_forgotten = "", False
        if waiting and not self._is_kept(replies.pop()):
            doubt = "a disk or a replica did not confirm in time that it has the command"
            # It may be a master that was abandoned.
            await self._leave()
        if any(reply in _OTHERS for reply in replies):
            doubt = "the memory of Redis was replaced meanwhile"
        found: list[bool | StoreError] = []
        for reply in replies:
            if reply == DONE:
                found.append(Indefinite(doubt) if doubt else True)
            elif reply in _OTHERS:
                found.append(self.lose(_OTHERS[reply]))
            elif isinstance(reply, Exception) and refusal(reply) != "NOSCRIPT":
                found.append(await self._refused(reply))
            else:
                is_forgotten |= isinstance(reply, Exception)
                found.append(False)
        if is_forgotten:
            # With its text it would be executed after the wait. What else was done is done, whatever comes of this.
            with suppress(StoreError):
                await self._teach(opened)
        return found

    def require_promise(self) -> None:
        """Raise `NotApplied` while nothing may be acknowledged."""
        if self.why_not:
            raise NotApplied(f"{_NOT_DURABLE}: {self.why_not}")

    async def _teach(self, link: Link) -> None:
        """Let the server know the script. Raises `NotApplied`."""
        (reply,) = await _definite(link.run([self._lesson], READ_SECONDS))
        if isinstance(reply, Exception):
            raise await self._refused(reply)

    def _waiting(self) -> tuple[RedisCommand, ...]:
        milliseconds, replicas = round(KEEP_SECONDS * 1_000), self.replicas
        if self.server.has_waitaof:
            return (("WAITAOF", 1, replicas, milliseconds),)
        return (("WAIT", replicas, milliseconds),) if replicas else ()

    def _is_kept(self, reply: Any) -> bool:
        if isinstance(reply, int):
            return reply >= self.replicas
        return isinstance(reply, list) and reply[0] >= 1 and reply[1] >= self.replicas

    async def news_link(self) -> Link:
        """A link for what is published, not yet connected. Raises `NotApplied`."""
        return self._access.link(await self._find())

    async def link(self, name: str) -> Link:
        """An open link. Raises as `require_open`, and `EpochChanged` where it leads to another server process."""
        self.require_open()
        link = self._links.get(name)
        if link is not None and link.is_open:
            return link
        async with self._connecting:
            link = self._links.get(name)
            if link is None or not link.is_open:
                link = await self._open()
                self._links[name] = link
                self.opened += name == "changes"
            return link

    async def _open(self) -> Link:
        address = await self._find()
        link = self._access.link(address)
        try:
            await link.connect(READ_SECONDS)
            await self._greet(link)
        except BaseException:
            await link.close()
            raise
        return link

    async def _find(self) -> Address:
        async with self._finding:
            self._found = tuple(await self._masters.find(self._found))
            return self._found[0]

    async def _greet(self, link: Link) -> None:
        """Raises `NotApplied` where the server is none to be used, `EpochChanged` where it is another one."""
        server = read(link, await _definite(link.exchange(LOOK, READ_SECONDS)))
        if server.is_cluster:
            raise StartRefused(f"{_NOT_DURABLE}: {link} is a node of a cluster; name one server, or its sentinels")
        if server.is_replica:
            raise NotApplied(f"{link} takes no writes: {CAUSES['READONLY']}")
        if self._server is not None and server.run_id != self._server.run_id:
            raise self.lose("Redis was restarted, or another server is the master now")
        self._server = server
        self.why_not = server.why_not(self._configured) or server.why_not_now(self._configured)
        self.place = str(link.address)

    async def look(self) -> None:
        """See whether the server is still the master, and what it promises; what it does not say is no promise."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                link = await self.link("reads")
                if await self._find() != link.address:
                    await self._leave()
                else:
                    await self._greet(link)
            except EpochChanged:
                # Only one of the links may have noticed.
                await self._leave()
            except StoreError as error:
                self.why_not = f"what it promises is not known: {error}"
            except Exception:  # noqa: BLE001 -- a bug must not end the looks, on which every promise depends
                _LOG.exception("a look at Redis failed because of a bug")
                self.why_not = "what it promises is not known, because of a bug"

    async def _refused(self, reply: Exception) -> NotApplied:
        """What to say of a command that the server refused: nothing was done."""
        code = refusal(reply)
        if code in _ELSEWHERE:
            await self._leave()
        return NotApplied(f"Redis refused: {_CAUSES.get(code, code)}")

    async def _leave(self) -> None:
        """Let the next call find the master again."""
        links, self._links = self._links, {}
        for link in links.values():
            await link.leave()


async def _definite(exchange: Awaitable[list[Any]]) -> list[Any]:
    """The replies of what changes nothing. Raises `NotApplied`."""
    try:
        return await exchange
    except Indefinite as error:
        raise NotApplied(*error.args) from error
