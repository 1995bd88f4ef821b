"""The guard before a durable store: requests pass only while it is the store that was known here.

It owns no record. Each time that a store is reached, for the first time or anew, two questions are asked before
anything else: whether the living keys that it remembers are found under what this gateway serves (`recipes`), for a
request whose key is looked for under another identity runs again; and whether it is the memory that was known
(`epoch`). A third is asked beside the traffic and is only reported: how many living keys no route of this gateway
finds. With every tally the store notes that this gateway runs, and at the end that it has stopped.

A store that lost its memory goes on serving what it has. What it does not have, it may have had: for as long as keys
are remembered, a claim on an absent key, or on one that was released before the loss, is refused as `Amnesic`, unless
an operator accepts the loss. A read of such a key is refused alike, so that nobody is told that it is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Final, TypeVar
from uuid import UUID

from gateway.core.operation import EVENT_OF, MICROSECONDS, Claim, Command, Result, Snapshot, Takeover
from gateway.observe.facts import Events, MemoryChanged, StoreCalled
from gateway.store.base import Amnesic, EpochChanged, Indefinite, NotApplied, StartRefused, StoreError, Watch
from gateway.store.epoch import Amnesia, Seen, SeenFile, SharedNote, after_loss, amnesia_of, lineage, loss, memo_of
from gateway.store.operations import Epoch, Forwarding, ManagedStore, Serving, Tally
from gateway.store.recipes import beside, what_would_be_lost, without_route
from gateway.store.witness_files import Reading, WitnessFiles

T = TypeVar("T")
# Calls the store behind: a verb by its name, for what is reported, and the call.
_Ask = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]

_LOG = logging.getLogger("gateway")

_TIER: Final = "durable"
# What grants an execution. By name, because a union that stands in a test is made anew each time.
_GRANTING: Final = (Claim, Takeover)
_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5.0
# Shorter than what a gateway gives its stores to close: the note is not worth an untidy end.
_STOP_NOTE_SECONDS: Final = 0.5


class EpochGuard(Forwarding):
    """Satisfies the `Store` protocol of `base`; owns the store behind it.

    `serving` is what this gateway serves.
    """

    def __init__(
        self,
        store: ManagedStore,
        events: Events,
        serving: Serving,
        *,
        seen_file: SeenFile,
        amnesia_window_us: int,
        shared_note: SharedNote | None = None,
        witness_files: WitnessFiles | None = None,
        on_met: Callable[[str, str | None], None] = lambda _identity, _generation: None,
    ) -> None:
        """`witness_files` are those that `store` notes in what it acknowledges, if it does. `on_met` gets identity and
        generation of each memory that is met, before anything gets to it; a generation of None is not known.
        """
        super().__init__(store)
        self._events = events
        self._serving = serving
        self._seen_file = seen_file
        self._shared_note = shared_note
        self._on_met = on_met
        self._witness_files = witness_files
        self._amnesia_window_us = amnesia_window_us
        self._seen: Seen | None = None
        # A shared note that was read for a meeting which then failed: it counts for the next one.
        self._unjudged: Seen | None = None
        self._noted: Seen | None = None
        self._amnesia = Amnesia()
        self._is_amnesic = False
        self._is_open = False
        self._why_shut = "the durable store was not reached yet"
        # How often it was found that the memory may be another one.
        self._memory_changes = 0
        self._reopening: asyncio.Task[None] | None = None
        self._stray_count: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the store and agree with it. Raises `StartRefused` where a change would forget living keys."""
        try:
            await self._start()
        except StoreError as error:
            self._why_shut = str(error)
            if not isinstance(error, StartRefused):
                await self._report_known_memory()
            raise
        self._is_open = True
        self._stray_count = asyncio.get_running_loop().create_task(self._warn_of_strays())

    async def _start(self) -> None:
        if self._witness_files is not None:
            await asyncio.to_thread(self._witness_files.open)
        await self._call("start", self._behind.start)
        try:
            agreement = await self._call(
                "compare_configuration", lambda: self._behind.compare_configuration(self._serving)
            )
            if agreement.conflicts:
                raise StartRefused(what_would_be_lost(self._serving, agreement.conflicts))
            for neighbour in agreement.neighbours:
                _LOG.warning("%s", beside(self._serving, neighbour))
            if self._seen is None:
                self._seen = self._noted = await asyncio.to_thread(self._seen_file.read)
            await self._compare_memory(self._call)
        except BaseException:
            await self._behind.close()
            raise

    async def _warn_of_strays(self) -> None:
        """Say which keys no route of this configuration would find. That they cannot be counted now stops nobody."""
        try:
            count_without_route = await self._call(
                "count_without_route",
                lambda: self._behind.count_without_route(self._serving.service, self._serving.recipes),
            )
        except Exception as error:  # noqa: BLE001 - nobody else would hear of it
            is_bug = not isinstance(error, StoreError)
            _LOG.warning(
                "whether keys of operations without a route are alive could not be counted: %s", error, exc_info=is_bug
            )
            return
        for operation, alive in sorted(count_without_route.items()):
            _LOG.warning("%s", without_route(operation, alive))

    async def close(self) -> None:
        was_open, self._is_open = self._is_open, False
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.gather(self._reopening, return_exceptions=True)
        await self._end_stray_count()
        await self._save_seen()
        if was_open:
            await self._note_stopped()
        try:
            await self._behind.close()
        finally:
            if self._witness_files is not None:
                await self._write("acknowledged", self._witness_files.close)

    async def _note_stopped(self) -> None:
        """Say that this gateway runs no more. Where the store does not take it, it finds that out by itself."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_STOP_NOTE_SECONDS):
                await self._call(
                    "note_running", lambda: self._behind.note_running(self._serving.gateway_id, is_running=False)
                )

    async def _end_stray_count(self) -> None:
        if self._stray_count is not None:
            self._stray_count.cancel()
            await asyncio.gather(self._stray_count, return_exceptions=True)

    async def apply(self, command: Command) -> Result:
        changes = self._memory_changes
        if self._is_amnesic and isinstance(command, Claim):
            snapshot = await self._forward("read", lambda: self._behind.read(command.identity.operation_id))
            self._check_known(snapshot, command.attempt_id)
        self._check_open()
        # As `_call`, without a coroutine more: every claim and every answer comes here.
        verb, started = EVENT_OF[type(command)], time.perf_counter()
        try:
            result = await self._behind.apply(command)
        except BaseException as failure:
            self._report_call(verb, started, failure)
            raise
        self._report_call(verb, started)
        if changes != self._memory_changes and isinstance(command, _GRANTING):
            raise Indefinite("the durable store was met anew meanwhile: nobody knows which memory has answered")
        record, seen = result.snapshot.record, self._seen
        if record is not None and seen is not None and record.token > seen.token:
            # Written out, for every claim comes here: `replace` looks at each field by its name.
            self._seen = Seen(seen.identity, record.token, seen.former, seen.is_compared)
        return result

    async def read(self, operation_id: UUID) -> Snapshot:
        snapshot = await self._forward("read", lambda: self._behind.read(operation_id))
        if self._is_amnesic:
            self._check_known(snapshot)
        return snapshot

    async def tally(self) -> Tally:
        """Also when this gateway notes that it runs and what it saw, and learns what others saw, found out, accepted or
        purged."""
        tally = await super().tally()
        await self._compare_memory(self._forward)
        await self.note_running(self._serving.gateway_id, is_running=True)
        return tally

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        await super().begin_epoch(memo, beyond_token)
        self._update_amnesia(await self.check_memory())

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        return self._behind.watch(operation_id)

    # -- memory -------------------------------------------------------------------------------------------------------

    async def _compare_memory(self, ask: _Ask) -> None:
        """Compare the store with what was seen of it, and write a loss down before anything is granted."""
        # All notes from before the store is asked: what is seen meanwhile is no loss.
        own, (shared, is_read), reading = self._seen, await self._read_shared(), await self._read_witness_notes()
        epoch = await ask("check_memory", lambda: self._behind.check_memory([note.link for note in reading.notes]))
        amnesia = amnesia_of(epoch)
        why = loss(own, shared, epoch, amnesia, reading.notes)
        if why is not None:
            notes = [note for note in (own, shared) if note is not None]
            amnesia = after_loss(why, notes, epoch, amnesia, self._amnesia_window_us)
            # Known from here on, also while the store does not take it.
            self._update_amnesia(replace(epoch, memo=memo_of(amnesia)))
            memo, beyond = memo_of(amnesia), amnesia.beyond
            await ask("begin_epoch", lambda: self._behind.begin_epoch(memo, beyond))
            epoch = await ask("check_memory", self._behind.check_memory)
        self._seen = _joined(self._seen, shared, epoch, is_new=not self._is_open or why is not None, is_read=is_read)
        self._unjudged = None
        self._on_met(epoch.identity, epoch.generation)
        self._update_amnesia(epoch)
        await self._save_seen()
        if is_read:
            await self._save_shared(shared, replace(self._seen, former=amnesia_of(epoch).former))

    async def _report_known_memory(self) -> None:
        """Without the store, tell of the memory that it had when it was last met.

        This host's note alone may be of a store that the others have left, or that this host was configured for
        before; the shared note alone may be of another store of that name.
        """
        own = self._seen
        if own is None:
            with contextlib.suppress(StartRefused):
                own = await asyncio.to_thread(self._seen_file.read)
        shared, _ = await self._read_shared()
        if own is not None and shared is not None and lineage(own.identity) == lineage(shared.identity):
            self._on_met(own.identity, None)

    async def _read_shared(self) -> tuple[Seen | None, bool]:
        """The note that gateways share, and whether it could be read now. Redis is not needed to go on."""
        if self._shared_note is None:
            return None, False
        try:
            self._unjudged = await self._shared_note.read()
        except StoreError:
            return self._unjudged, False
        return self._unjudged, True

    async def _read_witness_notes(self) -> Reading:
        return Reading() if self._witness_files is None else await asyncio.to_thread(self._witness_files.read)

    async def _save_shared(self, held: Seen | None, seen: Seen) -> None:
        """Tell the others what was seen, if they do not know it. A Redis that does not take it is asked again."""
        if self._shared_note is None or (held is not None and replace(seen, is_compared=held.is_compared) == held):
            return
        with contextlib.suppress(StoreError):
            await self._shared_note.write(seen, "" if held is None else held.identity)

    def _update_amnesia(self, epoch: Epoch) -> None:
        """What the store says of its memory, now."""
        amnesia = amnesia_of(epoch)
        is_amnesic = epoch.now_us < amnesia.until_us
        if is_amnesic != self._is_amnesic or (is_amnesic and amnesia != self._amnesia):
            left_seconds = max(0, amnesia.until_us - epoch.now_us) / MICROSECONDS
            self._events.publish(MemoryChanged(is_amnesic, left_seconds, amnesia.why, amnesia.by))
            self._memory_changes += is_amnesic
        self._amnesia, self._is_amnesic = amnesia, is_amnesic
        if self._witness_files is not None:
            self._witness_files.beyond = amnesia.beyond

    def _check_known(self, snapshot: Snapshot, claim_id: UUID | None = None) -> None:
        """Raises `Amnesic` where a claim on this record is refused; `claim_id` is the attempt that makes it."""
        if self._amnesia.refuses(snapshot.record, snapshot.now_us, claim_id):
            raise Amnesic("the durable store lost its memory, and what became of this key may have been in it")

    async def _save_seen(self) -> None:
        """Note what was seen, and sync what was acknowledged."""
        if self._witness_files is not None:
            await self._write("acknowledged", self._witness_files.sync)
        seen = self._seen
        if seen is None or seen == self._noted:
            return
        if await self._write("seen", self._seen_file.write, seen):
            self._noted = seen

    async def _write(self, what: str, write: Callable[..., None], *arguments: Any) -> bool:
        """Whether the disk took it. One that does not is no reason to stop: the next time it may."""
        try:
            await asyncio.to_thread(write, *arguments)
        except OSError as error:
            _LOG.error("what was %s of the durable store could not be noted: %s", what, error)
            return False
        return True

    def _reopen(self, why: str) -> None:
        """Behind the store's connections is another memory: let nothing through until it was met."""
        if self._is_open:
            self._is_open, self._why_shut = False, why
            self._memory_changes += 1
            self._reopening = asyncio.get_running_loop().create_task(self._restart())

    async def _restart(self) -> None:
        pause_seconds = _PAUSE_SECONDS_MIN
        while True:
            try:
                await self._end_stray_count()
                await self._behind.close()
                await self.start()
                return
            except StartRefused as error:
                _LOG.error("the durable store must not be used any more: %s", error)
            except StoreError:
                pass
            except Exception:  # noqa: BLE001  the gate must not stay shut because of a bug
                _LOG.exception("the durable store could not be started anew; trying again")
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)

    # -- calling ------------------------------------------------------------------------------------------------------

    async def _forward(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        self._check_open()
        return await self._call(verb, call)

    def _check_open(self) -> None:
        if not self._is_open:
            raise NotApplied(self._why_shut)

    async def _call(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        started = time.perf_counter()
        try:
            answer = await call()
        except BaseException as failure:
            self._report_call(verb, started, failure)
            raise
        self._report_call(verb, started)
        return answer

    def _report_call(self, verb: str, started: float, failure: BaseException | None = None) -> None:
        """State that the store was called, and how that ended. Behind another memory the gate is shut first."""
        error: str | None = None
        if isinstance(failure, StoreError):
            error = type(failure).__name__
            # Also where it was met behind what a statement had found.
            if isinstance(failure, EpochChanged) or isinstance(failure.__cause__, EpochChanged):
                self._reopen(str(failure))
        elif isinstance(failure, asyncio.CancelledError):
            error = "Cancelled"
        self._events.publish(StoreCalled(_TIER, verb, time.perf_counter() - started, error))


def _joined(own: Seen | None, shared: Seen | None, epoch: Epoch, *, is_new: bool, is_read: bool) -> Seen:
    """What is now known of a store that was just met: the higher token of those who saw this very memory.

    What the store itself says of its last token counts only where it was met anew. It may be ahead of what is on its
    disk, and after a crash the store would seem to have forgotten it.
    """
    known = [note for note in (own, shared) if note is not None and note.identity == epoch.identity]
    tokens = [note.token for note in known]
    if is_new or not tokens:
        tokens.append(epoch.token)
    was_compared = own is not None and own.identity == epoch.identity and own.is_compared
    return Seen(epoch.identity, max(tokens), is_compared=is_read or was_compared)
