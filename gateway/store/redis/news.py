"""News between gateways through Redis: one subscribing link per gateway, shared by all waiters.

It keeps the server's subscriptions equal to the open watches, and reconnects by itself. News is a hint and may be lost;
whenever some may have been, the listeners are woken to read the record. It knows channels, never records. Who changes
an operation publishes on its channel, and each purge also on that of purges.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from gateway.store.base import NotApplied, StoreError, end_tasks
from gateway.store.redis.connection import CAUSES, CONNECT_SECONDS, Address, Link, RedisCommand, refusal
from gateway.store.watching import LocalWatch

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
