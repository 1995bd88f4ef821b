"""Notices that a store lost its memory: what was remembered of it, compared with what it is.

Owns the comparison and two notes: what this gateway last saw of the store, in a file of its state directory; and what
gateways found out about lost memories, in the store itself (`Amnesia`), so that one that starts later knows it too.
Whoever has no note of its own believes the store; that is the loss nobody can notice.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gateway.store.base import Epoch, StartRefused

# How far tokens jump: further than any number that the lost memory can have given out since it was last seen.
TOKENS_SKIPPED: Final = 1_000_000_000
_FORMER_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Seen:
    """What was last seen of a store: which memory it was, and the highest token that it had given."""

    identity: str
    token: int


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


def loss(seen: Seen | None, epoch: Epoch, amnesia: Amnesia) -> str | None:
    """What the store lost since it was last seen; None when it lost nothing, or what it lost is known already."""
    if seen is None:
        return None
    if seen.identity != epoch.identity:
        if seen.identity in amnesia.former:
            return None
        return "the store is another one than before, or a standby that was promoted"
    if epoch.token < seen.token:
        return f"the store is in an older state: its last token is {epoch.token}, and {seen.token} was seen"
    return None


def after_loss(why: str, seen: Seen, epoch: Epoch, amnesia: Amnesia, window_us: int) -> Amnesia:
    """What to write down about a loss that was just found: absent keys are not believed for a whole window."""
    former = amnesia.former if seen.identity == epoch.identity else (*amnesia.former, seen.identity)
    return replace(
        amnesia,
        until_us=max(amnesia.until_us, epoch.now_us + window_us),
        why=why,
        by="",
        former=former[-_FORMER_MAX:],
        beyond=max(seen.token, epoch.token) + TOKENS_SKIPPED,
    )


class SeenFile:
    """What this gateway last saw of the store, kept over restarts. Its verbs block: they write to the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Seen | None:
        """The note; None when there is none. Raises `StartRefused` for one that cannot be read."""
        try:
            noted = json.loads(self._path.read_bytes())
            return Seen(str(noted["identity"]), int(noted["token"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StartRefused(
                f"{self._path}, which says what was last seen of the durable store, cannot be read ({error}); without "
                "it a lost memory would go unnoticed. Repair it, or remove it to believe the store as it is"
            ) from error

    def write(self, seen: Seen) -> None:
        """Keep the note, whole or not at all. Raises OSError."""
        partial = self._path.with_suffix(".partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, json.dumps({"identity": seen.identity, "token": seen.token}).encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.replace(self._path)
        with contextlib.suppress(OSError):
            directory = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
