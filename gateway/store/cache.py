"""The completed records that this process remembers, so that a frequent replay costs no call of a store.

Only acknowledged, completed records get in. A completed record changes only when its window ends, which every hit
checks, or when it is purged. A purge reaches the cache as a `drop`, or else takes effect when the entry is
`age_seconds_max` old. All times are boot-time seconds that the caller passes. Ages count from the start of the store
call that returned the record, so that a slow call does not make an old record look young.

Bounded in bytes, least recently used first out; every verb is O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from uuid import UUID

from gateway.core.immutable import immutable
from gateway.core.operation import MICROSECONDS, Snapshot, State

# The overhead of a record's objects in CPython, beside the bytes that they hold, and that of each header. The first
# replay adds its reply (`Record.replay`), which has the headers once more.
_RECORD_BYTES: Final = 2_050
_HEADER_BYTES: Final = 150

# One entry may take this part of the budget: a single huge response must not push out everything else.
_ENTRY_SHARE: Final = 16


@immutable
class _Entry:
    """`until_seconds`: its record may be returned until then, by its age and its replay window."""

    snapshot: Snapshot
    started_seconds: float
    until_seconds: float
    size_bytes: int
    token: int


class ProcessCache:
    """Completed records by operation id."""

    def __init__(
        self, bytes_max: int, age_seconds_max: float, on_new: Callable[[Snapshot, float], None] | None = None
    ) -> None:
        """A cache of 0 bytes, or of age 0, keeps nothing. `on_new` gets what `put` gets of a completed
        record of which no copy was here."""
        self._bytes_max = bytes_max
        self._entry_bytes_max = bytes_max // _ENTRY_SHARE
        self._age_seconds_max = age_seconds_max
        self._on_new = on_new
        self.entries: Final[OrderedDict[int, _Entry]] = OrderedDict()
        """By the integer of the operation id, because UUID hashes in Python code. What is in it may be over."""
        self._bytes = 0
        self._dropped_seconds = float("-inf")

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def size_bytes(self) -> int:
        """An estimate of what the entries occupy."""
        return self._bytes

    def get(self, operation_id: UUID, now_seconds: float) -> Snapshot | None:
        """The record as of now, or None."""
        number = operation_id.int
        entry = self.entries.get(number)
        if entry is None:
            return None
        if now_seconds >= entry.until_seconds:
            self._remove(number)
            return None
        self.entries.move_to_end(number)
        snapshot, elapsed_seconds = entry.snapshot, now_seconds - entry.started_seconds
        return Snapshot(snapshot.record, snapshot.now_us + int(elapsed_seconds * MICROSECONDS))

    def put(self, snapshot: Snapshot, started_seconds: float, *, is_copy: bool = False) -> None:
        """Keep a completed record from a store call that began at `started_seconds`; ignore any other. One that
        `is_copy` is news to nobody.

        Also ignored when that call began before the last drop, of any operation: it may have read what was dropped. So
        single drops need not be remembered, at the price of a few more store calls.
        """
        record = snapshot.record
        if record is None or record.state is not State.COMPLETED:
            return
        number = record.identity.operation_id.int
        known = self.entries.get(number)
        if (
            self._on_new is not None
            and not is_copy
            and (
                known is None
                or started_seconds - known.started_seconds >= self._age_seconds_max
                or known.token != record.token
            )
        ):
            self._on_new(snapshot, started_seconds)
        if not self._age_seconds_max or started_seconds <= self._dropped_seconds:
            return
        if known is not None and known.started_seconds >= started_seconds:
            return
        size_bytes, response = _RECORD_BYTES, record.response
        if response is not None:
            size_bytes += _HEADER_BYTES * len(response.headers) + len(response.body or b"")
            for name, value in response.headers:
                size_bytes += 2 * (len(name) + len(value))
        if size_bytes > self._entry_bytes_max:
            return
        if known is not None:
            self._remove(number)
        if record.sealed is not None:
            # Nothing is written from here, so only the clear record is needed.
            snapshot = Snapshot(replace(record, sealed=None), snapshot.now_us)
        # Counted from the start of the call, so that it ends no later than by the store's clock.
        window_seconds = (record.replay_until_us - snapshot.now_us) / MICROSECONDS
        until_seconds = started_seconds + min(self._age_seconds_max, window_seconds)
        self.entries[number] = _Entry(snapshot, started_seconds, until_seconds, size_bytes, record.token)
        self._bytes += size_bytes
        while self._bytes > self._bytes_max:
            self._bytes -= self.entries.popitem(last=False)[1].size_bytes

    def drop(self, operation_id: UUID, now_seconds: float) -> None:
        """Forget the record, and refuse what was read before now."""
        self._dropped_seconds = max(self._dropped_seconds, now_seconds)
        self._remove(operation_id.int)

    def _remove(self, number: int) -> None:
        entry = self.entries.pop(number, None)
        if entry is not None:
            self._bytes -= entry.size_bytes
