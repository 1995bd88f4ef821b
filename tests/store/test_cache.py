"""The process cache: what it answers, when it stops to, and what it may hold."""

from __future__ import annotations

from gateway.store.tiered import ProcessCache
from tests.conformance.hand import REPLAY_SECONDS
from tests.store.copies import completed, id_of

AGE_SECONDS = 30.0
ROOMY_BYTES = 1_000_000


def test_an_entry_ends_with_its_window() -> None:
    """A record is not answered from the moment on at which its replay window is over."""
    cache, snapshot = ProcessCache(ROOMY_BYTES, 10 * REPLAY_SECONDS), completed()
    cache.put(snapshot, 100.0)
    assert cache.get(id_of(snapshot), 100.0 + REPLAY_SECONDS - 0.001) is not None
    assert cache.get(id_of(snapshot), 100.0 + REPLAY_SECONDS) is None
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_a_later_reading_makes_an_entry_young_and_an_earlier_one_does_not_make_it_old() -> None:
    """Of two readings of a record the one whose call began later is kept."""
    cache, snapshot = ProcessCache(ROOMY_BYTES, AGE_SECONDS), completed()
    cache.put(snapshot, 100.0)
    cache.put(snapshot, 120.0)
    cache.put(snapshot, 110.0)
    assert cache.get(id_of(snapshot), 149.9) is not None
    assert cache.get(id_of(snapshot), 150.0) is None


def test_a_drop_refuses_what_was_read_before_it() -> None:
    """A record whose store call began before the drop does not come back; one read afterwards does."""
    cache, snapshot = ProcessCache(ROOMY_BYTES, AGE_SECONDS), completed()
    cache.put(snapshot, 100.0)
    cache.drop(id_of(snapshot), 105.0)
    assert cache.get(id_of(snapshot), 105.0) is None
    cache.put(snapshot, 104.0)
    assert cache.get(id_of(snapshot), 106.0) is None
    cache.put(snapshot, 105.5)
    assert cache.get(id_of(snapshot), 106.0) is not None


def test_the_bytes_are_bounded_and_the_least_recently_used_goes_first() -> None:
    """Entries are pushed out in the order of their last use, and what they weighed is given back."""
    snapshots = [completed(b"x" * 1_000) for _ in range(40)]
    one = ProcessCache(ROOMY_BYTES, AGE_SECONDS)
    one.put(snapshots[0], 100.0)
    cache = ProcessCache(30 * one.size_bytes, AGE_SECONDS)
    for snapshot in snapshots[:30]:
        cache.put(snapshot, 100.0)
    assert cache.get(id_of(snapshots[0]), 101.0) is not None
    for snapshot in snapshots[30:]:
        cache.put(snapshot, 100.0)
    kept = [index for index, snapshot in enumerate(snapshots) if cache.get(id_of(snapshot), 101.0)]
    assert kept == [0, *range(11, 40)]
    assert cache.size_bytes == 30 * one.size_bytes
