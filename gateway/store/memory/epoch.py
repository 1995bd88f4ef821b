"""Notices that a store lost data: compares what was seen and acknowledged before with what the store has now.

A *memory* is a store's data set with its history. Compared are what this gateway last saw of the store (`SeenFile`),
what the store acknowledged to the workers of this host (`WitnessFiles`), what all gateways saw, where they share it
(`SharedNote`), and what gateways found out about lost memories, in the store itself (`Amnesia`). Without any note a
gateway has to trust the store; such a loss goes unnoticed.

Theory of operation
-------------------
*Witnesses.* A restored copy has the identity of its original, and its last token proves little: a completion draws
none, and a crash may leave Postgres's sequence ahead of its data. So each link over which a worker writes has a row in
the store, its witness: a number that every change raises in its own transaction. What survives of a store (a copy, a
standby, a crash) is a prefix of its commits. So a witness no lower than the number last acknowledged proves that all
that was acknowledged until then is there, from whichever gateway; a lower or missing one proves a loss. Each start of a
store takes new link ids: two gateways never raise one witness, even with a copied state directory.

*Note first.* The acknowledged number is in the state directory before the caller has the result, without a sync: the
kernel keeps the pages of a killed process. A power loss on this host together with a loss in the store can go
unnoticed. Each new connection compares the notes of all workers of the host before its first statement; so does each
start and each later check. Notes are read before the store: a change in between then does not look like a loss. A
number acknowledged after a comparison stands for all compared notes: the files of ended workers are then removed.

*Reach.* Other hosts learn of a loss from the memo, at their next check or connection. No note covers what a gateway
only read before its writer had the acknowledgement. Nobody waits for Redis: where all files are lost, a loss of what
was acknowledged since the last write of the shared note goes unnoticed.

*Lineage.* Memories have no order of their own. The memo of a memory names those that it replaced, and so does the
shared note: that tells an outdated note from a store that fell back. A promoted server (`promotion`) is compared as if
it were its former primary; its memo then names that one as continued, and a note that comes later is compared, too.

*Weight.* The shared note may come from an old copy of Redis and name a memory that was replaced. The store's memo
explains that if a gateway noticed the change. Otherwise this host's own note does, but only if the two notes had been
compared before: a host that first reached the store while Redis was down has compared nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import struct
import threading
import time
import zlib
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID, uuid4

from gateway.core import immutable
from gateway.core.operation import MICROSECONDS, Record
from gateway.store.base import StartRefused
from gateway.store.files import WorkerFile, lock
from gateway.store.operations import UNEXECUTED, WITNESS_KEEP_US, Epoch

# How far tokens jump: further than the lost memory can have drawn them since it was last seen.
TOKENS_SKIPPED: Final = 1_000_000_000
FORMER_MAX: Final = 64
# A missing witness proves nothing about a note older than this: the store may have removed it (`WITNESS_KEEP_US`).
MISSING_COUNTS_US: Final = WITNESS_KEEP_US - 30 * 86_400 * MICROSECONDS


@immutable
class Seen:
    """What was last seen of a store: its memory's identity and the highest token drawn; `is_compared`: the shared note
    was known then. Where it is shared, the memories that it had replaced, and what its links were told."""

    identity: str
    token: int
    former: tuple[str, ...] = ()
    is_compared: bool = False
    acknowledged: tuple[WitnessNote, ...] = ()


@immutable
class WitnessNote:
    """The number of a link's witness that was acknowledged last, at `at_us` of the store's clock, by the memory with
    this digest. `beyond` is the `Amnesia.beyond` that was in force: a note with a lower one is from before the last
    known loss and proves nothing any more."""

    link: UUID
    number: int
    at_us: int
    beyond: int
    memory: bytes


def memory_digest(identity: str) -> bytes:
    """The identity of a note's memory, in 16 bytes."""
    return sha256(identity.encode()).digest()[:16]


def lineage(identity: str) -> str:
    """The part of a memory's identity that survives a promotion: PostgreSQL's identity ends with the timeline."""
    return identity.rpartition("/")[0] or identity


class SharedNote(Protocol):
    """Where gateways share what they saw of one store. It may lose the note, or return one from long ago. Either verb
    may raise `StoreError`. Only the comparison waits for it."""

    async def read(self) -> Seen | None:
        """The note; None when there is none, or it cannot be parsed."""

    async def write(self, seen: Seen, compared: str) -> None:
        """Keep a note. For the same memory a lower token, and for the same link a lower number replaces nothing.
        `compared` is the memory in the note that was read and compared before; empty: none was there, or none was
        read. Only where the note is still about that memory, `former` is replaced, and links are dropped for which
        stands one that began minutes later: who has not compared them may have met a store that had lost them. Raises
        `NotApplied` where it is about a third one."""

    async def close(self) -> None:
        """Keep no connection until the next call."""


@dataclass(frozen=True, slots=True)
class Amnesia:
    """A store's memo of its own lost memories: until `until_us` of its clock, an absent key may have been used.

    `why` and `by`, the operator who accepted the loss, are for people. `former` are the replaced identities: no note
    about them is about another store. Above the token `beyond`, this memory is complete. `continued` are those of
    `former` that a proven promotion replaced since the last loss: this memory has all that they acknowledged.
    `promotion` describes the last one.
    """

    until_us: int = 0
    why: str = ""
    by: str = ""
    former: tuple[str, ...] = ()
    beyond: int = 0
    continued: tuple[str, ...] = ()
    promotion: str = ""

    def refuses(self, record: Record | None, now_us: int, attempt_id: UUID | None = None) -> bool:
        """Whether a claim by this attempt (None: a new one) on this record (None: absent) is refused because the store
        may have lost the key's record or its latest change. Acceptances and dispatches are refused likewise.

        On a record that nobody may have executed, with a token from before the loss, a later attempt may be lost. A
        repeated command is refused too: the memory that granted it may have lost the key before anybody compared it.
        """
        if now_us >= self.until_us:
            return False
        if record is None:
            return True
        return record.token <= self.beyond and (record.state in UNEXECUTED or record.attempt_id == attempt_id)


def amnesia_of(epoch: Epoch) -> Amnesia:
    """Decode the memo of a store. Raises `StartRefused` if it cannot be parsed."""
    if not epoch.memo:
        return Amnesia()
    try:
        noted = json.loads(epoch.memo)
        noted |= {"former": tuple(noted["former"]), "continued": tuple(noted["continued"])}
        return Amnesia(**{each.name: noted[each.name] for each in fields(Amnesia)})
    except (ValueError, TypeError, KeyError) as error:
        raise StartRefused("the store's note of its lost memory was written by a newer program: run that") from error


def memo_of(amnesia: Amnesia) -> bytes:
    """Encode the memo to write down."""
    return json.dumps(asdict(amnesia), separators=(",", ":")).encode()


# -- the comparison ----------------------------------------------------------------------------------------------------

_REPLACED: Final = "another store had already replaced this one"
_ANOTHER: Final = "the store is another one than before, or a standby that was promoted"
_AS_SHARED: Final = " (as other gateways noted in Redis)"
_IN_USE: Final = (
    "; should that other store still be in use, as the SQLite of another host may be, the two must not share a Redis "
    "under one `service`"
)


def loss(
    own: Seen | None, shared: Seen | None, epoch: Epoch, amnesia: Amnesia, notes: Iterable[WitnessNote] = ()
) -> str | None:
    """What the store lost since it was last seen; None if nothing, or if that loss is already known.

    `own` is this host's note, `shared` that of all gateways (None also if it could not be read), and `notes` are those
    of this host's workers, all read before `epoch`, which has the witnesses of all links in them.
    """
    # No other note outweighs what this host saw itself.
    if own is not None and (why := _contradiction(own, epoch, amnesia)) is not None:
        return why
    # The shared note counts for a new host, for one that was down since, and for one that first reached this memory
    # while Redis was down and so compared nothing. A host that did compare the two notes for this memory found no
    # conflict then: Redis must have returned an old note since.
    if shared is not None and (why := _contradiction(shared, epoch, amnesia)) is not None:
        was_compared = own is not None and own.identity == epoch.identity and own.is_compared
        if not (was_compared and why == _ANOTHER):
            # An older state of the same memory is no second store that could be in use.
            return why + _AS_SHARED + ("" if shared.identity == epoch.identity else _IN_USE)
    shared_notes = () if shared is None else shared.acknowledged
    for found, where in ((notes, ""), (shared_notes, _AS_SHARED)):
        if (why := missing(found, epoch, amnesia.beyond, amnesia.continued)) is not None:
            return why + where
    return None


def _contradiction(seen: Seen, epoch: Epoch, amnesia: Amnesia) -> str | None:
    """How a note contradicts the store; None if it agrees, or if that loss is already known."""
    if seen.identity == epoch.identity:
        if epoch.token < seen.token:
            return f"the store is in an older state: its last token is {epoch.token}, and {seen.token} was seen"
        return None
    # The memory's own memo comes first: two memories used in turn have each replaced the other.
    if seen.identity in amnesia.former:
        return None
    return _REPLACED if epoch.identity in seen.former else _ANOTHER


def missing(notes: Iterable[WitnessNote], epoch: Epoch, beyond: int, continued: Iterable[str] = ()) -> str | None:
    """What acknowledged changes were lost by these notes; None if the store has them all. `epoch` has their witnesses
    and was read after them. Notes about a memory that is neither this one nor one of `continued`, and those from before
    the loss that `beyond` stands for, are skipped."""
    memories = {memory_digest(identity) for identity in (epoch.identity, *continued)}
    for note in notes:
        if note.memory not in memories or note.beyond < beyond:
            continue
        held = epoch.witnesses.get(note.link)
        if held is None and epoch.now_us - note.at_us > MISSING_COUNTS_US:
            continue
        if held is None or held < note.number:
            return "the store is in an older state: it lacks changes that it had acknowledged to a gateway"
    return None


def after_loss(why: str, notes: Collection[Seen], epoch: Epoch, amnesia: Amnesia, window_us: int) -> Amnesia:
    """The memo of a loss that was just found: absent keys are doubtful for a whole window. It covers all memories that
    the notes name, so that none of them reports the same loss again."""
    named = [identity for seen in notes for identity in (*seen.former, seen.identity)]
    former = dict.fromkeys((*amnesia.former, *named, *([epoch.parent] if epoch.parent else [])))
    former.pop(epoch.identity, None)
    return replace(
        amnesia,
        until_us=max(amnesia.until_us, epoch.now_us + window_us),
        why=why,
        by="",
        former=tuple(former)[-FORMER_MAX:],
        beyond=max((epoch.token, *(seen.token for seen in notes))) + TOKENS_SKIPPED,
        continued=(),
    )


def after_promotion(epoch: Epoch, amnesia: Amnesia, promotion: str) -> Amnesia:
    """The memo of a memory that a promotion continues, as `promotion` describes: notes about its parent still count."""
    former, continued = ((*each, epoch.parent)[-FORMER_MAX:] for each in (amnesia.former, amnesia.continued))
    return replace(amnesia, former=former, continued=continued, promotion=promotion)


def met(own: Seen | None, shared: Seen | None, epoch: Epoch, *, is_new: bool, is_read: bool) -> Seen:
    """What is known of a store after a comparison: the highest token in the notes about this very memory.

    The store's own last one counts only if `is_new` or if there is no such note: it may be ahead of the store's disk,
    and after a crash it would look as if the store had lost data.
    """
    known = [note for note in (own, shared) if note is not None and note.identity == epoch.identity]
    tokens = [note.token for note in known]
    if is_new or not tokens:
        tokens.append(epoch.token)
    was_compared = own is not None and own in known and own.is_compared
    return Seen(epoch.identity, max(tokens), is_compared=is_read or was_compared)


# -- the note of what was seen -----------------------------------------------------------------------------------------

_LOCK_TRIES: Final = 100
_LOCK_PAUSE_SECONDS: Final = 0.02


class SeenFile:
    """What this host last saw of the store, kept over restarts. Its verbs block on the disk. Several workers share the
    file; none of them lowers a token that another has seen."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Seen | None:
        """The note; None when there is none. Raises `StartRefused` if it cannot be read."""
        try:
            noted = json.loads(self._path.read_bytes())
            is_compared = bool(noted["compared"])
            return Seen(str(noted["identity"]), int(noted["token"]), is_compared=is_compared)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise StartRefused(
                f"{self._path}, the note of what was last seen of the durable store, cannot be read ({error}); without "
                "it a lost memory would go unnoticed. Repair it, or remove it to trust the store as it is"
            ) from error

    def write(self, seen: Seen) -> None:
        """Replace the note atomically; about the same memory, the higher token stays. Raises OSError."""
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            for _ in range(_LOCK_TRIES):
                if lock(directory, fcntl.LOCK_EX):
                    break
                time.sleep(_LOCK_PAUSE_SECONDS)
            else:
                # It is frozen, say.
                raise BlockingIOError("another worker has held the lock for too long")
            with contextlib.suppress(StartRefused):
                known = self.read()
                if known is not None and known.identity == seen.identity:
                    seen = replace(seen, token=max(seen.token, known.token))
            noted = {"identity": seen.identity, "token": seen.token, "compared": seen.is_compared}
            partial = self._path.with_suffix(".partial")
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.write(descriptor, json.dumps(noted).encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            partial.replace(self._path)
            with contextlib.suppress(OSError):
                os.fsync(directory)
        finally:
            os.close(directory)


# -- the notes of what was acknowledged --------------------------------------------------------------------------------
#
# All workers read the files of ended workers, and remove them once a later acknowledgement stands for them. A note is
# one small write at a fixed place, with a checksum. When `write` returns, it survives the end of the process; after the
# next `sync` it is on the disk.

# Links of one worker.
PLACES: Final = 8
SUFFIX: Final = ".notes"

_LOG = logging.getLogger("gateway")

# Link, number, time, token of the last known loss, memory; then the checksum of these.
_NOTE: Final = struct.Struct("<16sQqQ16s")
_CHECKSUM: Final = struct.Struct("<I4x")
_NOTE_BYTES: Final = _NOTE.size + _CHECKSUM.size
_UNUSED: Final = bytes(_NOTE_BYTES)
# A reader may meet a write half done, but hardly this often in a row.
_READ_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class Reading:
    """The notes of all workers of the host, and the files of those workers that had ended before."""

    notes: tuple[WitnessNote, ...] = ()
    ended: frozenset[Path] = frozenset()

    @property
    def ended_ids(self) -> list[UUID]:
        """The ids of the ended workers' files."""
        found = []
        for path in self.ended:
            with contextlib.suppress(ValueError):
                found.append(UUID(path.stem))
        return found


class WitnessFiles(WorkerFile):
    """One worker's file, and those of the host's other workers. `open`, `sync` and `close` block on the disk, the
    others only in the kernel. All may be called in any thread, `write` in one at a time."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, SUFFIX)
        # Without it, a write could reach another file that got the number of the closed descriptor.
        self._lock = threading.Lock()
        self._is_synced = True
        self._has_failed = False
        self._covered: frozenset[Path] = frozenset()
        self._latest: dict[int, WitnessNote] = {}
        self.beyond = 0
        """`Amnesia.beyond` of the last known loss; each new note carries it."""

    @property
    def latest(self) -> tuple[WitnessNote, ...]:
        """This worker's own notes."""
        return tuple(self._latest.values())

    def open(self) -> None:
        """Make this worker's file, unless it is open. Raises `StartRefused`."""
        if self._path is not None:
            return
        try:
            self._make(_UNUSED * PLACES)
        except OSError as error:
            raise StartRefused(f"{self._directory} cannot be written to: {error.strerror}") from error
        self._latest = {}

    def read(self) -> Reading:
        """All current notes. Raises `StartRefused` for a file that cannot be read."""
        for _ in range(_READ_TRIES):
            notes: list[WitnessNote] = []
            ended: set[Path] = set()
            path = self._directory
            try:
                for path in self._paths():
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    try:
                        # Check the lock before reading: a worker that has ended writes no more.
                        if path != self._path and lock(descriptor, fcntl.LOCK_SH):
                            ended.add(path)
                        notes += _notes_in(descriptor)
                    finally:
                        os.close(descriptor)
            except FileNotFoundError:
                if path == self._directory:
                    return Reading()
                # Another worker removed it, and may have made its own file after this listing: list again.
                continue
            except (OSError, ValueError) as error:
                raise _unreadable(path, error) from error
            return Reading(tuple(notes), frozenset(ended))
        raise _unreadable(self._directory, "its files keep disappearing, or are dangling links")

    def write(self, place: int, note: WitnessNote) -> None:
        """Keep the latest note of one of this worker's links. The first of several failed writes is logged."""
        self._latest[place] = note
        values = _NOTE.pack(note.link.bytes, note.number, note.at_us, note.beyond, note.memory)
        try:
            with self._lock:
                os.pwrite(self._descriptor, values + _CHECKSUM.pack(zlib.crc32(values)), place * _NOTE_BYTES)
        except OSError as error:
            if not self._has_failed:
                _LOG.error("what the durable store acknowledged could not be noted in %s: %s", self._path, error)
            self._has_failed = True
        else:
            self._is_synced = self._has_failed = False

    def cover(self, reading: Reading) -> None:
        """Mark the ended files of this reading for removal: a number that was acknowledged and noted after it was
        compared stands for all notes in it."""
        self._covered |= reading.ended

    def sync(self) -> None:
        """Sync this worker's notes to the disk, and remove the files that they stand for. Raises OSError."""
        if self._is_synced or self._path is None:
            return
        self._is_synced, covered = True, self._covered
        try:
            os.fsync(self._descriptor)
        except OSError:
            self._is_synced = False
            raise
        for path in covered:
            path.unlink(missing_ok=True)
        self._covered -= covered

    def close(self) -> None:
        """Release this worker's file; it stays for later workers to read. Raises OSError."""
        if self._path is None:
            return
        try:
            self.sync()
        finally:
            with self._lock:
                self._release()


class Witness:
    """The witness of one link of a worker, over which the store raises its number."""

    def __init__(self, files: WitnessFiles, place: int) -> None:
        """`files` are open; `place` is the link's in them."""
        self.files = files
        self._place = place
        self._memory = b""
        self._reading = Reading()
        self.renew()

    def renew(self) -> None:
        """Be that of a new link, from which nothing was acknowledged."""
        self.link, self.number = uuid4(), 0

    def stand_for(self, epoch: Epoch, reading: Reading) -> None:
        """The memory that the link leads to has all of this reading: what it acknowledges next stands for that."""
        self._memory, self._reading = memory_digest(epoch.identity), reading

    def acknowledge(self, number: int, at_us: int) -> None:
        """Note the number; the transaction that raised it is committed."""
        self.number = number
        self.files.write(self._place, WitnessNote(self.link, number, at_us, self.files.beyond, self._memory))
        if self._reading.ended:
            self.files.cover(self._reading)
            self._reading = Reading()


def _unreadable(path: Path, why: object) -> StartRefused:
    return StartRefused(
        f"{path}, the notes of what the durable store acknowledged, cannot be read ({why}); without them a lost memory "
        "could go unnoticed. Repair it, or remove it to trust the store as it is"
    )


def _notes_in(descriptor: int) -> list[WitnessNote]:
    """The notes of one file. Raises ValueError for bytes that are no notes."""
    size = os.fstat(descriptor).st_size
    if size != PLACES * _NOTE_BYTES:
        raise ValueError(f"it has {size} bytes")
    notes = (_note_at(descriptor, place) for place in range(PLACES))
    return [note for note in notes if note is not None]


def _note_at(descriptor: int, place: int) -> WitnessNote | None:
    for _ in range(_READ_TRIES):
        found = os.pread(descriptor, _NOTE_BYTES, place * _NOTE_BYTES)
        if found == _UNUSED:
            return None
        values = found[: _NOTE.size]
        if found[_NOTE.size :] == _CHECKSUM.pack(zlib.crc32(values)):
            link, *rest = _NOTE.unpack(values)
            return WitnessNote(UUID(bytes=link), *rest)
    raise ValueError(f"the checksum of note {place} is wrong")
