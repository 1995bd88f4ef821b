"""The master that keeps the operations: links to it, what it promises, and when what it executed is acknowledged.

Its invariant: all links lead to the server process that the store was started on; another one is another memory until
it was compared (`EpochChanged`). It knows neither records nor keys, and of changes what the script replies.

Theory of operation
-------------------
*On the disk first.* A command is acknowledged once the server, and every replica that may be promoted, have it on their
disk: `WAITAOF 1 R` where the server has it, otherwise `appendfsync always` and `WAIT R`. Fewer, or too late: it is not
known whether the command took effect.

*Nothing is dropped.* Any `maxmemory-policy` but `noeviction` deletes records when memory runs out. A user that may
flush the database can delete all of them by one slip.

*Said by the server.* All this is read on every new connection and every few seconds. A server that says nothing of it
is not used. What it cannot say is left to the operator: how many of its replicas may be promoted (`store.replicas`),
and whether theirs is a disk that keeps what it was told to.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, Final

from gateway.store.base import EpochChanged, Indefinite, NotApplied, StartRefused, StoreError
from gateway.store.redis.connection import CAUSES, Access, Address, Link, RedisCommand, find_masters, refusal, run_lines

_LOG = logging.getLogger("gateway")

ANOTHER_MEMORY: Final = "the memory of Redis is another one than before: it was flushed, or replaced"
_DONE: Final = b"OK"
# Other replies of a change, by which the memory is another one. Any other says that something was changed meanwhile.
_OTHERS: Final[dict[Any, str]] = {
    b"MEMORY": ANOTHER_MEMORY,
    b"WITNESS": "Redis lacks changes that it had acknowledged",
}
LOOK_SECONDS: Final = 5.0
READ_SECONDS: Final = 5.0
# How long the disks and the replicas are waited for; beyond it, it is not known whether a command took effect.
KEEP_SECONDS: Final = 2.0
_WRITE_SECONDS: Final = KEEP_SECONDS + 3.0

_CAUSES: Final = {**CAUSES, "OOM": "its memory is full (OOM); raise maxmemory, or let keys be remembered for less long"}
_NOT_DURABLE: Final = "Redis cannot be the durable store"
_ELSEWHERE: Final = frozenset(("READONLY", "MASTERDOWN", "LOADING"))
_FORGOTTEN: Final = "NOSCRIPT"

# A setting, what it has to be, whether WAITAOF does as well, and why otherwise.
_RULES: Final = (
    (
        "appendonly", "yes", False,
        "appendonly is not yes: a crash loses acknowledged responses, and their keys execute again; set it in its file "
        "and start it again, because CONFIG SET replaces the log on its disk by what is in memory",
    ),
    (
        "appendfsync", "always", True,
        "appendfsync is not always, and the server is too old for WAITAOF (Redis 7.2, Valkey)",
    ),
    (
        "no-appendfsync-on-rewrite", "no", True,
        "no-appendfsync-on-rewrite is not no: while its log is written anew, nothing is synced",
    ),
    (
        "maxmemory-policy", "noeviction", False,
        "maxmemory-policy is not noeviction: it would delete records when memory runs out",
    ),
    (
        "replica-read-only", "yes", False,
        "replica-read-only is not yes: somebody may change what a replica has",
    ),
)  # fmt: skip
# Refused for their argument, before anything is flushed, where the user may flush.
_FLUSHES: Final = ("FLUSHALL", "FLUSHDB")
_LOOK: Final[Sequence[RedisCommand]] = (
    ("INFO",),
    *((command, "not-really") for command in _FLUSHES),
    *(("CONFIG", "GET", name) for name, *_ in _RULES),
)
"""The commands whose replies `_greet` takes."""

_WAITAOF_SINCE: Final = (7, 2)
_NO_HISTORY: Final = "0" * 40


class Primary:
    """From `start` to `close`. `replicas` is how many may be promoted; None: the configuration does not say.

    `lesson` is a call of the script that changes nothing that matters, with all commands of the others."""

    def __init__(self, access: Access, replicas: int | None, lesson: RedisCommand) -> None:
        self._access = access
        self.replicas = replicas or 0
        self._is_counted = replicas is not None
        self._lesson = lesson
        self._links: dict[str, Link] = {}
        self._connecting = asyncio.Lock()
        self._found: tuple[Address, ...] = ()
        self._is_open = False
        # Why the memory is another one than at the start.
        self._lost = ""
        # What the server said last, from `start` on.
        self.run_id = ""
        self.has_history = False
        """Whether it took over from another server since it was started."""
        self._has_waitaof = False
        # Why it must not keep operations alone until an operator changes something, and what; empty if it may.
        self._why_unfit = ""
        self.place = ""
        """Where the server is, as it stays over a restart."""
        self.why_not = ""
        """Why nothing may be acknowledged now; empty if it may."""

    async def start(self) -> None:
        """Connect, and take the server as it is from now on. Raises `StartRefused`, `NotApplied`."""
        self.run_id, self._is_open, self._lost = "", True, ""
        try:
            link = await self.link("changes")
            # What it has while replicas are missing was acknowledged, and can be served.
            if self._why_unfit:
                raise StartRefused(f"{_NOT_DURABLE}: {self._why_unfit}")
            await self._teach(link)
            # What may not be waited for would never be acknowledged.
            await self.read(self._waiting(), "changes")
        except BaseException:
            self.close()
            raise

    def require_open(self) -> None:
        """Raise `NotApplied` unless it is started, and `EpochChanged` once another memory was found."""
        if not self._is_open:
            raise NotApplied("the store is not open")
        if self._lost:
            raise EpochChanged(self._lost)

    def require_promise(self) -> None:
        """Raise `NotApplied` while nothing may be acknowledged."""
        if self.why_not:
            raise NotApplied(f"{_NOT_DURABLE}: {self.why_not}")

    def lose(self, why: str) -> EpochChanged:
        """What to raise: the memory is another one, and stays so until the next start."""
        self._lost = why
        return EpochChanged(why)

    def close(self) -> None:
        self._is_open = False
        for link in self._links.values():
            link.close()
        self._links = {}

    async def read(self, commands: Sequence[RedisCommand], link: str = "reads") -> list[Any]:
        """The replies. Raises `NotApplied`, also where the server refuses one of the commands."""
        replies = await _definite((await self.link(link)).exchange(commands, READ_SECONDS))
        for reply in replies:
            if isinstance(reply, Exception):
                raise self._refused(reply)
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
        if not calls:
            return []
        opened = await self.link(link)
        if keeps:
            self.require_promise()
        waiting = self._waiting() if keeps else ()
        replies = await opened.exchange([*calls, *waiting, *news], _WRITE_SECONDS)
        del replies[len(calls) + len(waiting) :]
        doubt = ""
        if waiting and not self._is_kept(replies.pop()):
            doubt = "a disk or a replica did not confirm in time that it has the command"
            # It may be a master that was abandoned.
            self._leave()
        if any(reply in _OTHERS for reply in replies):
            doubt = "the memory of Redis was replaced meanwhile"
        found: list[bool | StoreError] = []
        for reply in replies:
            if reply == _DONE:
                found.append(Indefinite(doubt) if doubt else True)
            elif reply in _OTHERS:
                found.append(self.lose(_OTHERS[reply]))
            elif refusal(reply) in ("", _FORGOTTEN):
                found.append(False)
            else:
                found.append(self._refused(reply))
        if _FORGOTTEN in map(refusal, replies):
            # With its text it would be executed after the wait. What else was done is done, whatever comes of this.
            with suppress(StoreError):
                await self._teach(opened)
        return found

    async def _teach(self, link: Link) -> None:
        """Let the server know the script. Raises `NotApplied`."""
        (reply,) = await _definite(link.run([self._lesson], READ_SECONDS))
        if isinstance(reply, Exception):
            raise self._refused(reply)

    def _waiting(self) -> tuple[RedisCommand, ...]:
        milliseconds, replicas = round(KEEP_SECONDS * 1_000), self.replicas
        if self._has_waitaof:
            return (("WAITAOF", 1, replicas, milliseconds),)
        return (("WAIT", replicas, milliseconds),) if replicas else ()

    def _is_kept(self, reply: Any) -> bool:
        if isinstance(reply, int):
            return reply >= self.replicas
        return isinstance(reply, list) and reply[0] >= 1 and reply[1] >= self.replicas

    # -- links ---------------------------------------------------------------------------------------------------------

    async def link(self, name: str) -> Link:
        """An open link. Raises as `require_open`, and `EpochChanged` where it leads to another server process."""
        self.require_open()
        link = self._links.get(name)
        if link is not None and link.is_open:
            return link
        async with self._connecting:
            link = self._links.get(name)
            if link is None or not link.is_open:
                link = await self.news_link()
                try:
                    await self._greet(link)
                except BaseException:
                    link.close()
                    raise
                self._links[name] = link
            return link

    async def news_link(self) -> Link:
        """A new link, to a server that was not looked at. Raises `NotApplied`."""
        return await self._access.open(await self._find(), READ_SECONDS)

    async def _find(self) -> Address:
        self._found = tuple((await find_masters(self._access, self._found)).slots)
        return self._found[0]

    async def _greet(self, link: Link) -> None:
        """Raises `NotApplied` where the server is none to be used, `EpochChanged` where it is another one."""
        info, *rest = await _definite(link.exchange(_LOOK, READ_SECONDS))
        lines = run_lines(link, info)
        if lines.get("loading", "0") != "0":
            raise NotApplied("Redis is loading its data")
        if lines.get("cluster_enabled") == "1":
            raise StartRefused(f"{_NOT_DURABLE}: {link} is a node of a cluster; name one server, or its sentinels")
        if lines["role"] != "master":
            raise NotApplied(f"{link} takes no writes: {CAUSES['READONLY']}")
        if self.run_id not in ("", lines["run_id"]):
            raise self.lose("Redis was restarted, or another server is the master now")
        self.run_id, self.place = lines["run_id"], str(link.address)
        version = tuple(int(part) for part in re.findall(r"\d+", lines.get("redis_version", ""))[:2])
        self._has_waitaof = "valkey_version" in lines or version >= _WAITAOF_SINCE
        self.has_history = lines.get("master_replid2", _NO_HISTORY) != _NO_HISTORY
        # Those that have caught up and are connected.
        replicas = sum("state=online" in text for name, text in lines.items() if re.fullmatch(r"slave\d+", name))
        self._why_unfit = self.why_not = self._unfitness(replicas, rest)
        if not self.why_not and replicas < self.replicas:
            self.why_not = f"replicas that have caught up: {replicas}, and store.replicas is {self.replicas}"

    def _unfitness(self, replicas: int, rest: Sequence[Any]) -> str:
        """Why it must not keep operations alone, by its replicas and the replies to `_LOOK` behind that of INFO."""
        flushes = [
            command
            for command, reply in zip(_FLUSHES, rest, strict=False)
            if refusal(reply) != "NOPERM" and "unknown command" not in str(reply)
        ]
        hidden, found = [], []
        for (name, wanted, or_waitaof, why), reply in zip(_RULES, rest[len(_FLUSHES) :], strict=True):
            if refusal(reply) or len(reply) != 2 or not reply[1]:
                hidden.append(name)
            elif reply[1].decode() != wanted and not (or_waitaof and self._has_waitaof):
                found.append(why)
        if hidden:
            return (
                f"it does not tell {', '.join(hidden)}: let the gateway's user run `CONFIG GET`; a service that hides "
                "it cannot be the durable store"
            )
        if flushes:
            found.append(
                f"the gateway's user may run {' and '.join(flushes)}, which deletes every key at one slip: give the "
                "gateway a user without them (ACL SETUSER ... -flushall -flushdb)"
            )
        if replicas and not self._is_counted:
            found.append(f"replicas that follow it: {replicas}; say in store.replicas how many may be promoted")
        return "; ".join(found)

    async def look(self) -> None:
        """See whether the server is still the master, and what it promises; what it does not say is no promise."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                link = await self.link("reads")
                if await self._find() != link.address:
                    self._leave()
                else:
                    await self._greet(link)
            except EpochChanged:
                # Only one of the links may have noticed.
                self._leave()
            except StoreError as error:
                self.why_not = f"what it promises is not known: {error}"
            except Exception:  # noqa: BLE001 -- a bug must not end the looks, on which every promise depends
                _LOG.exception("a look at Redis failed because of a bug")
                self.why_not = "what it promises is not known, because of a bug"

    def _refused(self, reply: Exception) -> NotApplied:
        """What to say of a command that the server refused: nothing was done."""
        code = refusal(reply)
        if code in _ELSEWHERE:
            self._leave()
        return NotApplied(f"Redis refused: {_CAUSES.get(code, code)}")

    def _leave(self) -> None:
        """Let the next call find the master again."""
        for link in self._links.values():
            link.leave()
        self._links = {}


async def _definite(exchange: Awaitable[list[Any]]) -> list[Any]:
    """The replies of what changes nothing. Raises `NotApplied`."""
    try:
        return await exchange
    except Indefinite as error:
        raise NotApplied(*error.args) from error
