"""What an operation has been through, kept beside its record.

A record tells of its last attempt. So an operation that was completed by its first attempt has no entry, and the verbs
of a new key write none. An entry has what a later change would overwrite: how an attempt ended otherwise, what was
decided about the operation (`lifecycle` makes these), and what a probe found that changed nothing (the stores, when the
probe gives back its lease).

What has an audit has no entry: the audit tells who and why, and is encrypted. An entry quotes nobody. It has words of
this program, statuses, methods, and the names of gateways, as the record itself has them in clear.

The first `FIRST` entries and the last `LAST` are kept, and of what lies between how many were dropped. Probes are
dropped before anything else, because there is no end to them while a doubt lasts.
"""

from __future__ import annotations

import json
from dataclasses import astuple, fields
from typing import Final

from gateway.core.immutable import immutable

FIRST: Final = 3
LAST: Final = 20
PROBE: Final = "probe"
"""The event of a probe that changed nothing; all others are `Event`s."""
TEXT_CHARACTERS_MAX: Final = 200


@immutable
class Entry:
    """That something happened, at `at_us` of the store's clock and under this token. If it ended an attempt: by which
    `method` of which `holder`, which was claimed at `began_us`; 0 otherwise. `detail` is why, as short words, with the
    status if there was one (`recovery.answered_doubt`)."""

    event: str
    at_us: int
    token: int
    detail: str = ""
    began_us: int = 0
    holder: str = ""
    method: str = ""


@immutable
class History:
    """`dropped` is how many there were behind the first `FIRST` of the entries."""

    entries: tuple[Entry, ...] = ()
    dropped: int = 0


NO_HISTORY: Final = History()
_FIELDS: Final = len(fields(Entry))


def appended(packed: bytes | None, entry: Entry) -> bytes:
    history = unpacked(packed)
    entries, dropped = [*history.entries, entry], history.dropped
    if len(entries) > FIRST + LAST:
        probes = (place for place in range(FIRST, len(entries) - 1) if entries[place].event == PROBE)
        del entries[next(probes, FIRST)]
        dropped += 1
    # Not by orjson, which refuses surrogates: what a service or a person wrote must not stop a change.
    return json.dumps([dropped, *map(_cut, entries)], separators=(",", ":")).encode()


def unpacked(packed: bytes | None) -> History:
    """Undo `appended`; None is the history of an operation with nothing to tell."""
    if packed is None:
        return NO_HISTORY
    dropped, *entries = json.loads(packed)
    # A newer program may have more to tell.
    return History(tuple(Entry(*each[:_FIELDS]) for each in entries), dropped)


def _cut(entry: Entry) -> list[object]:
    return [each[:TEXT_CHARACTERS_MAX] if isinstance(each, str) else each for each in astuple(entry)]
