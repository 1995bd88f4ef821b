"""Notices that a store lost its memory: what was remembered of it, compared with what it is.

Owns the comparison and what it compares: what this gateway last saw of the store, in a file of its state directory;
what the store acknowledged to the workers of this host, in files beside that (`WitnessNote`); what all gateways saw,
where they share it (`SharedNote`), so that a host without a file of its own knows it too; and what gateways found out
about lost memories, in the store itself (`Amnesia`). Whoever has no note believes the store; that is the loss nobody
can notice.

Theory of operation
-------------------
*Witnesses.* The identity of a store tells it from another one, but a copy that was put back has the identity of its
original, and its last token proves little: a completion draws none, and a crash may bring Postgres's sequence back
ahead of where it was. So each link over which a worker writes has a row in the store, its witness: a number that every
change raises in its own transaction. What survives of a store is a prefix of its commits (a copy, a standby, a crash),
so a witness that is no lower than the number last acknowledged proves that all that was acknowledged before is there,
whoever did it; a lower or missing one proves a loss. No crash that keeps what was acknowledged lowers it.

*Before anybody hears.* The acknowledged number is noted in the state directory before the result goes to its caller,
without a sync: a killed process loses no page of the kernel's. It is synced with the other note. A loss of power here
together with a loss in the store can go unnoticed. Each new connection compares the notes of all workers of the host
with the witnesses before its first statement, and so does each start and each look.

*One life.* A link takes a new id with every start of its store, so two gateways never raise the same witness, also
where a state directory was copied. A number that was acknowledged after a comparison stands for all notes that were
compared: the files of workers that ended are then removed.

*Reach.* A witness speaks for its own host. Gateways with another state directory learn of a loss from the memo, at
their next look (seconds) or when they connect again. What a gateway merely read and replayed, before the worker that
wrote it had its acknowledgement, no note covers.

*Reading.* Notes are read before the store is asked. What others see and note meanwhile is then no loss.

*Lineage.* Memories have no order of their own. A memory's memo names those that it replaced, and so does the shared
note: that tells a note that has fallen behind from a store that has.

*Weight.* The shared note may come back from an old copy of Redis, and then it names a memory that is over. The store's
memo explains it, where anybody noticed the change. Otherwise this host's own note does, but only if the two notes had
been compared before: a host that met the store while Redis was away has merely believed it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

from gateway.core.immutable import immutable
from gateway.core.operation import MICROSECONDS, Record, State
from gateway.store.base import StartRefused
from gateway.store.operations import WITNESS_KEEP_US, Epoch

# How far tokens jump: further than any number that the lost memory can have given out since it was last seen.
TOKENS_SKIPPED: Final = 1_000_000_000
FORMER_MAX: Final = 64
# A note older than this says nothing where its witness is missing: the store may have removed it (`WITNESS_KEEP_US`).
MISSING_COUNTS_US: Final = WITNESS_KEEP_US - 30 * 86_400 * MICROSECONDS
_LOCK_TRIES: Final = 100
_LOCK_PAUSE_SECONDS: Final = 0.02


@immutable
class Seen:
    """What was last seen of a store: which memory it was, and the highest token that it had given.

    `former` are the memories that it had replaced, where that is noted. `is_compared` says that the shared note was
    known when this was noted.
    """

    identity: str
    token: int
    former: tuple[str, ...] = ()
    is_compared: bool = False


@immutable
class WitnessNote:
    """The number of a link's witness that was acknowledged last, at `at_us` of the store's clock.

    `memory` is the digest of the store's identity. `beyond` is the token that the last known loss was dealt with by
    (`Amnesia`): a note from before a loss that was written down says nothing any more.
    """

    link: UUID
    number: int
    at_us: int
    beyond: int
    memory: bytes


def memory_digest(identity: str) -> bytes:
    """Which memory a note is of, in 16 bytes."""
    return sha256(identity.encode()).digest()[:16]


class SharedNote(Protocol):
    """Where gateways share what they saw of one store. It may lose it, or bring back what it held long ago.

    Either verb may raise `StoreError`; nothing waits for it but the look at the store itself.
    """

    async def read(self) -> Seen | None:
        """The note; None when there is none, or none that can be understood."""

    async def write(self, seen: Seen, instead_of: str) -> None:
        """Keep a note. Of one memory a lower token replaces nothing; the note of another memory is replaced if it is
        still that of `instead_of` (the one that was read and judged; empty: none was there)."""


@dataclass(frozen=True, slots=True)
class Amnesia:
    """What a store says of its own lost memories.

    Until `until_us` of its clock an absent key may have been used; `why` and `by` are for people, `by` is whoever
    accepted the loss. `former` are the identities that were replaced: what a gateway remembers of them has been dealt
    with. `beyond` is the token from which on this memory is whole.
    """

    until_us: int = 0
    why: str = ""
    by: str = ""
    former: tuple[str, ...] = ()
    beyond: int = 0

    def refuses(self, record: Record | None, now_us: int, attempt_id: UUID | None = None) -> bool:
        """Whether a claim by this attempt (None: by one that was never made before) on this record, None for an absent
        one, is refused, because the store may have forgotten everything of the key, or what came last.

        A released record is the only other one that a claim is granted on. One whose token is from before the loss may
        be older than a retry that was executed; and a claim of that time, repeated, may have been granted by a memory
        that had forgotten the key, before anybody compared it.
        """
        if now_us >= self.until_us:
            return False
        if record is None:
            return True
        return record.token <= self.beyond and (record.state is State.RELEASED or record.attempt_id == attempt_id)


def lineage(identity: str) -> str:
    """What of a memory's identity stays when a standby is promoted: PostgreSQL's ends with the timeline."""
    return identity.rpartition("/")[0] or identity


def amnesia_of(epoch: Epoch) -> Amnesia:
    """The memo of a store. Raises `StartRefused` for one that cannot be understood."""
    if not epoch.memo:
        return Amnesia()
    try:
        noted = json.loads(epoch.memo)
        return Amnesia(
            int(noted["until_us"]), str(noted["why"]), str(noted["by"]), tuple(noted["former"]), int(noted["beyond"])
        )
    except (ValueError, TypeError, KeyError) as error:
        raise StartRefused("what the store says of its lost memory was written by a newer program: run that") from error


def memo_of(amnesia: Amnesia) -> bytes:
    """What to write down."""
    noted = {
        "until_us": amnesia.until_us,
        "why": amnesia.why,
        "by": amnesia.by,
        "former": list(amnesia.former),
        "beyond": amnesia.beyond,
    }
    return json.dumps(noted, separators=(",", ":")).encode()


_REPLACED: Final = "another store had already replaced this one"
_ANOTHER: Final = "the store is another one than before, or a standby that was promoted"
_IN_USE: Final = (
    "should that other store still be in use, as the SQLite of another host may be, the two must not share a Redis "
    "under one `service`"
)


def loss(
    own: Seen | None, shared: Seen | None, epoch: Epoch, amnesia: Amnesia, notes: Iterable[WitnessNote] = ()
) -> str | None:
    """What the store lost since it was last seen; None when it lost nothing, or what it lost is known already.

    `own` is this host's note and `shared` that of all gateways, and `notes` are those of this host's workers, all read
    before the store was asked; `shared` is None too when it could not be read.
    """
    # What this host saw itself and the store does not have, no other note brings back.
    if own is not None and (why := _speaks_against(own, epoch, amnesia)) is not None:
        return why
    # A fresh host knows what the others saw, and nothing else. For one that has been away since, what the others saw
    # meanwhile counts. One that met this memory while Redis was away has merely believed it.
    if shared is not None and (why := _speaks_against(shared, epoch, amnesia)) is not None:
        # But one that met it and compared the two notes found no stranger then: Redis has come back with what it held
        # long ago.
        was_compared = own is not None and own.identity == epoch.identity and own.is_compared
        if not (was_compared and why == _ANOTHER):
            why = f"{why} (as other gateways noted in Redis)"
            # Of this memory in a later state there is no second one that could be in use.
            return why if shared.identity == epoch.identity else f"{why}; {_IN_USE}"
    return missing(notes, epoch, amnesia.beyond)


def _speaks_against(seen: Seen, epoch: Epoch, amnesia: Amnesia) -> str | None:
    """What a note holds against the store that is there; None where it agrees with it, or that is known already."""
    if seen.identity == epoch.identity:
        if epoch.token < seen.token:
            return f"the store is in an older state: its last token is {epoch.token}, and {seen.token} was seen"
        return None
    # First what this memory knows by itself: two that were used in turn have each replaced the other.
    if seen.identity in amnesia.former:
        return None
    return _REPLACED if epoch.identity in seen.former else _ANOTHER


def missing(notes: Iterable[WitnessNote], epoch: Epoch, beyond: int) -> str | None:
    """Whether the store, as of `epoch`, lacks what it acknowledged to the workers that noted this; None if it has all.

    `epoch` was asked for the witnesses of all these notes, after they were read. Notes of another memory, and those
    from before the loss that was dealt with by the token `beyond`, say nothing.
    """
    memory = memory_digest(epoch.identity)
    for note in notes:
        if note.memory != memory or note.beyond < beyond:
            continue
        held = epoch.witnesses.get(note.link)
        if held is None and epoch.now_us - note.at_us > MISSING_COUNTS_US:
            continue
        if held is None or held < note.number:
            return "the store is in an older state: it lacks changes that it had acknowledged to a gateway of this host"
    return None


def after_loss(why: str, notes: Iterable[Seen], epoch: Epoch, amnesia: Amnesia, window_us: int) -> Amnesia:
    """What to write down about a loss that was just found: absent keys are not believed for a whole window.

    All that the notes name is then dealt with, so that none of them tells of the same loss again.
    """
    noted = list(notes)
    named = [identity for seen in noted for identity in (*seen.former, seen.identity)]
    former = dict.fromkeys((*amnesia.former, *(identity for identity in named if identity != epoch.identity)))
    return replace(
        amnesia,
        until_us=max(amnesia.until_us, epoch.now_us + window_us),
        why=why,
        by="",
        former=tuple(former)[-FORMER_MAX:],
        beyond=max((epoch.token, *(seen.token for seen in noted))) + TOKENS_SKIPPED,
    )


class SeenFile:
    """What this gateway last saw of the store, kept over restarts. Its verbs block: they write to the disk.

    Several workers share the file, and none of them takes back what another has seen.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Seen | None:
        """The note; None when there is none. Raises `StartRefused` for one that cannot be read."""
        try:
            noted = json.loads(self._path.read_bytes())
            is_compared = bool(noted["compared"])
            return Seen(str(noted["identity"]), int(noted["token"]), is_compared=is_compared)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise StartRefused(
                f"{self._path}, which says what was last seen of the durable store, cannot be read ({error}); without "
                "it a lost memory would go unnoticed. Repair it, or remove it to believe the store as it is"
            ) from error

    def write(self, seen: Seen) -> None:
        """Keep the note, whole or not at all, with the higher token of the two where one is known. Raises OSError."""
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            _lock(directory)
            with contextlib.suppress(StartRefused):
                known = self.read()
                if known is not None and known.identity == seen.identity:
                    seen = replace(seen, token=max(seen.token, known.token))
            self._replace(seen)
            with contextlib.suppress(OSError):
                os.fsync(directory)
        finally:
            os.close(directory)

    def _replace(self, seen: Seen) -> None:
        noted = {"identity": seen.identity, "token": seen.token, "compared": seen.is_compared}
        partial = self._path.with_suffix(".partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, json.dumps(noted).encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.replace(self._path)


def _lock(directory: int) -> None:
    """Until the descriptor is closed. One that was frozen while it had the lock is not waited for: raises OSError."""
    for _ in range(_LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOCK_PAUSE_SECONDS)
    raise BlockingIOError("another worker has been writing it for long")
