"""The history of an operation: its bounds, and its bytes."""

from __future__ import annotations

import json

from gateway.core.history import FIRST, LAST, NO_HISTORY, PROBE, Entry, appended, unpacked


def test_a_newer_program_may_tell_more() -> None:
    """Fields behind those that are known are left out."""
    packed = appended(None, Entry("release", 2, 1, "answered_503", 1, "a", "POST"))
    dropped, entry = json.loads(packed)
    found = unpacked(json.dumps([dropped, [*entry, "more"]]).encode())
    assert found.entries == (Entry("release", 2, 1, "answered_503", 1, "a", "POST"),)
    assert unpacked(None) == NO_HISTORY


def test_the_oldest_probe_is_dropped_first() -> None:
    """An attempt between probes stays, and so does the last entry, whatever it is."""
    packed = None
    for at in range(FIRST + LAST):
        packed = appended(packed, Entry("release" if at == FIRST else PROBE, at, 1))
    packed = appended(packed, Entry("abandon", 99, 1))
    history = unpacked(packed)
    assert [each.at_us for each in history.entries] == [*range(FIRST + 1), *range(FIRST + 2, FIRST + LAST), 99]
    assert history.dropped == 1
    for at in range(2 * LAST):
        packed = appended(packed, Entry("release", 100 + at, 1))
    events = [each.event for each in unpacked(packed).entries]
    assert events == [PROBE] * FIRST + ["release"] * LAST
