"""The guard in front of a durable store: requests pass only while it is the store that this host knew.

It owns no record. On each connection to a store, before anything else, it checks two things: that this gateway's
configuration still finds the living keys that the store remembers (`agreement`), because a request whose key gets
another identity would run again; and that the store still has the memory that was known (`epoch`). Every few seconds it
exchanges notes with the other gateways.

A store that lost data goes on serving the records that it has. A missing record may be among the lost ones. So for as
long as keys are remembered, a claim, an acceptance or a read of a missing key raises `Amnesic`, unless an operator
accepts the loss. So it is with a record that says, from before the loss, that no attempt had an effect: it is not
claimed, dispatched or withdrawn, and not found when due.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, ParamSpec, TypeVar
from uuid import UUID

from gateway.core.confidential import NO_SEALING, Sealing
from gateway.core.delivery import Delivering
from gateway.core.lifecycle import step
from gateway.core.operation import (
    MICROSECONDS,
    Accept,
    Claim,
    Command,
    Dispatch,
    Fenced,
    Result,
    Snapshot,
    Takeover,
    Withdraw,
    operation_id_of,
)
from gateway.observe.facts import Events, MemoryChanged, NotesExchanged, StoreCalled
from gateway.store.agreement import agree, strays, why_refused, why_unfinished
from gateway.store.base import (
    Amnesic,
    EpochChanged,
    Indefinite,
    NotApplied,
    NotGranted,
    StartRefused,
    Store,
    StoreError,
    boot_seconds,
    end_tasks,
)
from gateway.store.memory.epoch import (
    Amnesia,
    Reading,
    Seen,
    SeenFile,
    SharedNote,
    WitnessFiles,
    after_loss,
    amnesia_of,
    lineage,
    loss,
    memo_of,
    met,
)
from gateway.store.memory.promotion import Conditions, Fleet, Membership, Unproven
from gateway.store.operations import Cold, Due, Epoch, Serving
from gateway.store.sealed import DURABLE, SealedStore, passing

P = ParamSpec("P")
T = TypeVar("T")

_LOG = logging.getLogger("gateway")

# The commands that grant an attempt or promise one. A constant, because a union inside `isinstance` is built on every
# call.
_GRANTING: Final = (Claim, Accept, Dispatch, Takeover)
# The commands that believe the record when it says that no attempt had an effect.
_BELIEVING: Final = (Claim, Accept, Dispatch, Withdraw)
# The most due operations to read while those from before a loss are left out.
_DUE_MAX: Final = 4_096
_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5.0
# Until the votes about a promotion are counted again.
_VOTES_SECONDS: Final = 0.2
# Shorter than the time that a gateway gives its stores to close: the note must not make that time out.
_STOP_NOTE_SECONDS: Final = 0.5
# What was acknowledged is shared within a second, with the time that the write takes, and no more often than this.
_SHARE_SECONDS: Final = 0.5
_SHARE_AGAIN_SECONDS: Final = 2.0
# How long a host without a note of its own waits at its start until it can read the shared one.
_SHARED_WAIT_SECONDS: Final = 5.0
_UNTOLD: Final = (
    "state_dir has no note of the durable store, and the one in Redis cannot be read: if the store has lost "
    "its memory, that is not noticed before Redis can be read"
)


class EpochGuard(SealedStore):
    """Satisfies the `Store` protocol of `base`; owns the store behind it."""

    def __init__(
        self,
        store: Store,
        events: Events,
        serving: Serving,
        *,
        seen_file: SeenFile,
        amnesia_window_us: int,
        shared_note: SharedNote | None = None,
        witness_files: WitnessFiles | None = None,
        fleet: Fleet | None = None,
        conditions: Conditions = Conditions(),  # noqa: B008  frozen
        sealing: Sealing = NO_SEALING,
        on_met: Callable[[str, str | None], None] = lambda _identity, _generation: None,
    ) -> None:
        """`serving` is what this gateway serves. In `witness_files` `store` notes what it acknowledges. `fleet` is the
        same store if it can be promoted, which is believed on these `conditions`. `on_met` gets identity and generation
        (None: not known) of each memory that is found, before any request reaches it. `sealing` has the keys of
        `serving`.
        """
        super().__init__(store, sealing, events)
        # Called by the guard itself, also while requests are blocked.
        self._asked = passing(self.cold, self._call)
        self.cold = passing(self.cold, self._forward, find_due=self._find_due, begin_epoch=self._begin_epoch)
        self._serving = serving
        self._seen_file = seen_file
        self._shared_note = shared_note
        self._on_met = on_met
        self._witness_files = witness_files
        self._amnesia_window_us = amnesia_window_us
        # What was met; and the highest token that was seen of it since is `_token`.
        self._met: Seen | None = None
        self._token, self._unshared_since = 0, None
        # A shared note that was read for a comparison which then failed: the next one uses it.
        self._uncompared: Seen | None = None
        self._noted: Seen | None = None
        # What was shared last. The event is set while `_unshared_since` is a time.
        self._shared: Seen | None = None
        self._is_unshared = asyncio.Event()
        self._sharing: asyncio.Task[None] | None = None
        self._amnesia = Amnesia()
        self.is_amnesic = False
        """Whether first requests with keys that the store does not have are refused."""
        self._membership: Membership | None = None
        if fleet is not None:
            self._membership = Membership(
                fleet, serving.gateway_id, conditions, self._call, events, witness_files, self._update_trust
            )
        self._is_open = False
        self._why_shut = "the durable store was not reached yet"
        self._update_trust()
        self._reopening: asyncio.Task[None] | None = None
        self._stray_count: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the store and compare it. Raises `StartRefused` if this configuration would lose living keys."""
        try:
            await self._start()
        except StoreError as error:
            self._why_shut = str(error)
            if not isinstance(error, StartRefused):
                await self._report_known_memory()
            raise
        self._is_open = True
        self._update_trust()
        loop = asyncio.get_running_loop()
        await end_tasks((self._stray_count,))
        self._stray_count = loop.create_task(self._warn_of_strays())
        if self._shared_note is not None and self._sharing is None:
            self._sharing = loop.create_task(self._share_for_ever(self._shared_note))

    async def _start(self) -> None:
        if self._witness_files is not None:
            await asyncio.to_thread(self._witness_files.open)
        await self._call(super().start)
        try:
            for warning in await agree(self._asked, self._serving, self.sealing):
                _LOG.warning("%s", warning)
            if self._seen is None:
                self._met = self._noted = await asyncio.to_thread(self._seen_file.read)
            if self._seen is None:
                await self._wait_shared()
            await self._compare_memory(self._asked)
        except BaseException:
            await super().close()
            raise

    async def _warn_of_strays(self) -> None:
        """A count that fails is only logged."""
        try:
            for warning in await strays(self._asked, self._serving):
                _LOG.warning("%s", warning)
        except Exception as error:  # noqa: BLE001 - nobody awaits this task
            is_bug = not isinstance(error, StoreError)
            _LOG.warning(
                "the living keys of operations without a route could not be counted: %s", error, exc_info=is_bug
            )

    async def remember_again(self) -> None:
        """Have the store remember what this gateway serves, after another one agreed on something else and was given
        up. While the store is away, that is left to the next start."""
        # The keys of this gateway were found all the while: that is nothing to ask about.
        names = frozenset(self._serving.recipes)
        with contextlib.suppress(StoreError):
            await self.cold.compare_configuration(replace(self._serving, accepted=names, mode_accepted=names))

    async def close(self) -> None:
        was_open, self._is_open = self._is_open, False
        self._update_trust()
        await end_tasks((self._reopening, self._stray_count))
        if self._membership is not None:
            await self._membership.pause()
        await self._save_seen()
        await asyncio.gather(self._share_last(), self._note_stopped(was_open=was_open))
        try:
            await super().close()
        finally:
            if self._witness_files is not None:
                await self._write("acknowledged", self._witness_files.close)

    async def _note_stopped(self, *, was_open: bool) -> None:
        """Note that this gateway has stopped. If that fails, the others see it after `agreement.RUNNING_US`."""
        if was_open:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_STOP_NOTE_SECONDS):
                    await self._asked.note_running(self._serving.gateway_id, is_running=False)

    # -- what of a command is rare -------------------------------------------------------------------------------------

    async def _admit(self, command: Command) -> Result | None:
        if self.is_amnesic and isinstance(command, _BELIEVING):
            snapshot = await self._forward(super().read, operation_id_of(command))
            await self._check_known(snapshot, None if isinstance(command, Withdraw) else command.attempt_id)
        self._check_open()
        if isinstance(command, _GRANTING) and self._why_no_grants:
            return await self._without_grant(command, self._why_no_grants)
        return None

    def _doubt(self, command: Command, trust: int) -> None:
        if isinstance(command, _GRANTING) and trust != self._trust:
            raise Indefinite("the durable store was replaced meanwhile: it is not known which one took the command")
        if self._membership is not None and boot_seconds() > self._membership.until_seconds:
            raise Indefinite("this gateway was cut off from the durable store: a promoted one may lack the command")

    def _begin_unshared(self, since_seconds: float | None = None) -> None:
        self._unshared_since = boot_seconds() if since_seconds is None else since_seconds
        self._is_unshared.set()

    async def _without_grant(self, command: Command, why: str) -> Result:
        """What the record says to a command that may not be granted; raises `NotGranted` where it would be."""

        def refuse() -> int:
            raise NotGranted(why)

        try:
            snapshot = await self._forward(super().read, operation_id_of(command))
        except (NotApplied, Indefinite) as error:
            raise NotApplied(why) from error
        result, _ = step(snapshot.record, command, snapshot.now_us, refuse)
        if not isinstance(result, Fenced):
            # It was granted before.
            refuse()
        return result

    async def read(self, operation_id: UUID) -> Snapshot:
        snapshot = await self._forward(super().read, operation_id)
        if self.is_amnesic:
            await self._check_known(snapshot)
        return snapshot

    async def _find_due(self, service: str, delivering: Delivering, limit: int) -> Due:
        wanted = limit
        while True:
            self._check_open()
            due = await self._asked.find_due(service, delivering, wanted)
            known = [
                each for each in due.found if not (self.is_amnesic and self._amnesia.refuses(each.record, each.now_us))
            ]
            if len(known) >= limit or len(due.found) < wanted or wanted >= _DUE_MAX:
                return replace(due, found=known[:limit])
            # The longest due are from before the loss. They must not hide the others.
            wanted = min(4 * wanted, _DUE_MAX)

    async def exchange_notes(self) -> None:
        """Write what this gateway saw, and that it runs, unless its beats say so; and read the other gateways' notes,
        memo and purges. To be called every few seconds. Raises `StoreError`."""
        await self._compare_memory(self.cold)
        if self._membership is None:
            await self.cold.note_running(self._serving.gateway_id, is_running=True)
        self._events.publish(NotesExchanged())

    @property
    def _seen(self) -> Seen | None:
        """What was last seen of the store."""
        seen, token = self._met, int(self._token)
        return seen if seen is None or seen.token >= token else replace(seen, token=token)

    async def _begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        self._check_open()
        await self._asked.begin_epoch(memo, beyond_token)
        self._update_amnesia(await self.cold.check_memory())

    async def noted_memory(self, _operation_id: UUID) -> str:
        """The lineage of the memory that this host saw last, also before the store is reached; empty without a note."""
        seen = await self._own_note()
        return "" if seen is None else lineage(seen.identity)

    # -- memory -------------------------------------------------------------------------------------------------------

    async def _compare_memory(self, cold: Cold) -> None:
        """Compare the store with what was seen of it, and write down a loss before any claim is granted. Where it is
        about to be used (`_asked`), be listed then. Raises `Unproven` while it is not known whether a promoted server
        lost anything."""
        is_new = cold is self._asked
        # Read all notes before the store: a change that others note in between must not look like a loss.
        own, (shared, is_read), files = self._seen, await self._read_shared(), self._witness_files
        reading = Reading() if files is None else await asyncio.to_thread(files.read)
        links = [note.link for note in (*reading.notes, *(() if shared is None else shared.acknowledged))]
        epoch = await cold.check_memory(links)
        if (refused := why_refused(epoch.level)) is not None:
            # Another program has ended the upgrade since.
            self._reopen(refused)
            raise StartRefused(refused)
        if is_new and (unfinished := why_unfinished(epoch.level)) is not None:
            _LOG.info("%s", unfinished)
        amnesia = amnesia_of(epoch)
        membership = self._membership if epoch.parent else None
        if membership is not None and self._is_open:
            # Behind a pooler. Nobody vouches while a response of the former primary may still be on its way.
            self._reopen("a standby of the durable store was promoted")
            self._check_open()
        # A promoted server is compared as what it says that it continues.
        compared = epoch if membership is None else replace(epoch, identity=epoch.parent)
        why = loss(own, shared, compared, amnesia, reading.notes)
        if membership is not None:
            why = await membership.judge(epoch, amnesia, why, reading)
            if why is None:
                epoch = await cold.check_memory()
                amnesia = amnesia_of(epoch)
        elif epoch.parent and why is None:
            why = "another server has taken over, and there is nobody to prove that it has lost nothing"
        if why is not None:
            notes = [note for note in (own, shared) if note is not None]
            amnesia = after_loss(why, notes, epoch, amnesia, self._amnesia_window_us)
            # In force from here on, even if the store cannot write it down yet.
            self._update_amnesia(replace(epoch, memo=memo_of(amnesia)))
            await cold.begin_epoch(memo_of(amnesia), amnesia.beyond)
            epoch = await cold.check_memory()
        self._met = met(self._seen, shared, epoch, is_new=is_new or why is not None, is_read=is_read)
        self._token = self._met.token
        self._uncompared = None
        self._on_met(epoch.identity, epoch.generation)
        self._update_amnesia(epoch)
        await self._save_seen()
        if is_read and self._shared_note is not None:
            with contextlib.suppress(StoreError):
                await self._share(self._shared_note, "" if shared is None else shared.identity)
        if is_new and self._membership is not None:
            await self._membership.join(epoch, reading)

    async def _report_known_memory(self) -> None:
        """While the store is unreachable, report the memory that it last had, where both notes say so: the own one may
        be about a store that the others no longer use, the shared one about another store of that name."""
        own, (shared, _) = await self._own_note(), await self._read_shared()
        if own is not None and shared is not None and lineage(own.identity) == lineage(shared.identity):
            self._on_met(own.identity, None)

    async def _own_note(self) -> Seen | None:
        """What this host saw last. A damaged note is reported by the start."""
        if self._seen is None:
            with contextlib.suppress(StartRefused):
                return await asyncio.to_thread(self._seen_file.read)
        return self._seen

    async def _read_shared(self) -> tuple[Seen | None, bool]:
        """The note that gateways share, and whether it could be read now. A failure of Redis is no error here."""
        if self._shared_note is None:
            return None, False
        try:
            self._uncompared = await self._shared_note.read()
        except StoreError:
            return self._uncompared, False
        return self._uncompared, True

    async def _wait_shared(self) -> None:
        """Give Redis time to start, too: this host has nothing else to compare the store with."""
        if self._shared_note is None:
            return
        try:
            async with asyncio.timeout(_SHARED_WAIT_SECONDS):
                while True:
                    _, is_read = await self._read_shared()
                    if is_read:
                        return
                    await asyncio.sleep(_PAUSE_SECONDS_MIN)
        except TimeoutError:
            _LOG.warning("%s", _UNTOLD)

    @property
    def unshared_seconds(self) -> float:
        """For how long the shared note has lacked something that the store acknowledged."""
        since = self._unshared_since
        return 0.0 if self._shared_note is None or since is None else max(0.0, boot_seconds() - since)

    def _to_share(self) -> Seen | None:
        acknowledged = () if self._witness_files is None else self._witness_files.latest
        seen = self._seen
        return None if seen is None else replace(seen, former=self._amnesia.former, acknowledged=acknowledged)

    async def _share(self, note: SharedNote, compared: str | None = None) -> None:
        """Share what was seen and acknowledged, if it may not be there. `compared` as in `SharedNote`; None if the note
        was not read now. Raises `StoreError`."""
        if (shared := self._to_share()) is None:
            return
        started_seconds = boot_seconds()
        if compared is not None or shared != self._shared:
            await note.write(shared, compared or "")
        self._shared, self._unshared_since = shared, None
        self._is_unshared.clear()
        if self._to_share() != shared:
            # Something was acknowledged meanwhile.
            self._begin_unshared(started_seconds)

    async def _share_for_ever(self, note: SharedNote) -> None:
        """Share what was acknowledged soon after it was. Nobody waits for that."""
        is_failing = False
        while True:
            await self._is_unshared.wait()
            try:
                await self._share(note)
                is_failing = False
            except Exception as error:  # noqa: BLE001  a bug must not end this: a loss could go unnoticed then
                if not is_failing:
                    is_bug = not isinstance(error, StoreError)
                    _LOG.warning("what the durable store acknowledged is not in Redis: %s", error, exc_info=is_bug)
                is_failing = True
            await asyncio.sleep(_SHARE_AGAIN_SECONDS if is_failing else _SHARE_SECONDS)

    async def _share_last(self) -> None:
        """Share what was acknowledged until the end."""
        sharing, self._sharing = self._sharing, None
        await end_tasks((sharing,))
        if self._shared_note is not None:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_STOP_NOTE_SECONDS):
                    await self._share(self._shared_note)
            await self._shared_note.close()

    def _update_amnesia(self, epoch: Epoch) -> None:
        """Apply the store's current memo, and publish a change."""
        amnesia = amnesia_of(epoch)
        is_amnesic = epoch.now_us < amnesia.until_us
        if is_amnesic != self.is_amnesic or (is_amnesic and amnesia != self._amnesia):
            left_seconds = max(0, amnesia.until_us - epoch.now_us) / MICROSECONDS
            self._events.publish(MemoryChanged(is_amnesic, left_seconds, amnesia.why, amnesia.by))
            if is_amnesic:
                self._trust_anew()
        self._amnesia, self.is_amnesic = amnesia, is_amnesic
        self._update_trust()
        if self._witness_files is not None:
            self._witness_files.beyond = amnesia.beyond

    async def _check_known(self, snapshot: Snapshot, claim_id: UUID | None = None) -> None:
        """Raise `Amnesic` if this record is not believed; `claim_id` is the attempt id of a command on it. The store is
        asked before: an operator may have accepted the loss just now, through another gateway."""
        if not self._amnesia.refuses(snapshot.record, snapshot.now_us, claim_id):
            return
        epoch, own = await self.cold.check_memory(), self._amnesia
        found = amnesia_of(epoch)
        # Of this very loss: the store may not have it yet.
        if found.by and (found.why, found.beyond) == (own.why, own.beyond):
            self._update_amnesia(epoch)
        if self._amnesia.refuses(snapshot.record, snapshot.now_us, claim_id):
            raise Amnesic("the durable store lost its memory, and this key's record may have been in it")

    async def _save_seen(self) -> None:
        """Write the note of what was seen, and sync the notes of what was acknowledged."""
        if self._witness_files is not None:
            await self._write("acknowledged", self._witness_files.sync)
        seen = self._seen
        if seen is not None and seen != self._noted and await self._write("seen", self._seen_file.write, seen):
            self._noted = seen

    async def _write(self, what: str, write: Callable[..., None], *arguments: Any) -> bool:
        """Whether the write succeeded. A failure is logged and never raised; a later write may succeed."""
        try:
            await asyncio.to_thread(write, *arguments)
        except OSError as error:
            _LOG.error("what was %s of the durable store could not be noted: %s", what, error)
            return False
        return True

    def _reopen(self, why: str) -> None:
        """The store's connections lead to another memory: block all calls until it was compared."""
        if self._is_open:
            self._is_open, self._why_shut = False, why
            self._trust_anew()
            self._reopening = asyncio.get_running_loop().create_task(self.keep_starting())

    async def keep_starting(self) -> None:
        """Start anew, and try again with growing pauses. Says why it is refused whenever that changes: then it may be a
        matter of moments."""
        pause_seconds, refused = _PAUSE_SECONDS_MIN, ""
        while True:
            try:
                await end_tasks((self._stray_count,))
                if self._membership is not None:
                    await self._membership.pause()
                await super().close()
                await self.start()
                return
            except Unproven:
                await asyncio.sleep(_VOTES_SECONDS)
                continue
            except StartRefused as error:
                if str(error) != refused:
                    refused, pause_seconds = str(error), _PAUSE_SECONDS_MIN
                    _LOG.error("the durable store must not be used any more: %s", refused)
            except StoreError:
                pass
            except Exception:  # noqa: BLE001  a bug must not block the store for ever
                _LOG.exception("the durable store could not be restarted; trying again")
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)

    # -- calling ------------------------------------------------------------------------------------------------------

    async def _forward(self, verb: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_open()
        return await self._call(verb, *args, **kwargs)

    @property
    def _why_no_grants(self) -> str:
        return "" if self._membership is None else self._membership.why_no_grants

    def _update_trust(self) -> None:
        """Keep the trust in force true: it ends where a command must not pass, or not without a look."""
        is_trusted = self._is_open and not self.is_amnesic and not self._why_no_grants
        listed_until = float("inf") if self._membership is None else self._membership.until_seconds
        self._trusted_until_seconds = listed_until if is_trusted else float("-inf")

    def _trust_anew(self) -> None:
        """The memory was found to be another one, perhaps: no command that is under way is believed to be granted."""
        self._trust += 1
        self._update_trust()

    def _check_open(self) -> None:
        if not self._is_open:
            raise NotApplied(self._why_shut)

    async def _call(self, verb: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        started = boot_seconds()
        try:
            result = await verb(*args, **kwargs)
        except BaseException as failure:
            self._report_call(verb.__name__, started, failure)
            raise
        self._report_call(verb.__name__, started)
        return result

    def _report_call(self, verb: str, started_seconds: float, failure: BaseException | None = None) -> None:
        """Publish the call and its outcome. If it found another memory, block further calls first."""
        error: str | None = None
        if isinstance(failure, StoreError):
            error = type(failure).__name__
            # `EpochChanged` may also be the cause of what a statement raised after it had found a record.
            if isinstance(failure, EpochChanged) or isinstance(failure.__cause__, EpochChanged):
                self._reopen(str(failure))
        elif isinstance(failure, asyncio.CancelledError):
            error = "Cancelled"
        self._events.publish(StoreCalled(DURABLE, verb, boot_seconds() - started_seconds, error))
