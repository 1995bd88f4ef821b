"""Lines of the log are lines, whatever they say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observe.lines import Entry, json_line, text_line

NAMES = st.sampled_from(["route", "detail", "request_id"])
# Surrogates are what is left of bytes that were not UTF-8.
ANYTHING = st.text(st.characters(codec=None), max_size=40) | st.sampled_from(
    ["\n", "\r\n2025-01-01T00:00:00.000Z error forged", "\x1b[2J", "\u202e", "\u2028", "\x85", "\udcff", '" a="b']
)
ENTRIES = st.builds(
    Entry,
    level=st.just("warning"),
    message=ANYTHING,
    fields=st.dictionaries(NAMES, ANYTHING | st.integers() | st.none()),
)


@given(ENTRIES)
def test_json_is_one_object_on_one_printable_line(entry: Entry) -> None:
    """Whatever an entry holds, a collector reads one object with its level and its fields."""
    line = json_line(0.0, entry)
    assert re.fullmatch(rb"[ -~]+\n", line)
    said = json.loads(line)
    assert said["level"] == "warning"
    assert said.keys() - {"time", "level", "message"} == {k for k, v in entry.fields.items() if v is not None}
    line.decode().encode("utf-8")


@given(ENTRIES)
def test_text_is_one_printable_line(entry: Entry) -> None:
    """Nothing in an entry ends the line, moves the cursor or turns the direction of reading."""
    line = text_line(0.0, entry).decode()
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert line.startswith("1970-01-01T00:00:00.000Z warning ")


@given(ANYTHING)
def test_a_value_cannot_pass_for_another_field(value: str) -> None:
    """A value is bare only where it is one plain word; otherwise it is quoted."""
    line = text_line(0.0, Entry("info", "m", {"detail": value})).decode()
    shown = line.partition(" m detail=")[2].rstrip("\n")
    assert re.fullmatch(r"[A-Za-z0-9_.:/@%+-]+", shown) or isinstance(json.loads(shown), str)


def test_a_traceback_is_indented_and_cannot_forge_a_line() -> None:
    """Each row of a traceback is marked as one, so that no text in it begins a line of the log."""
    traceback = "Traceback:\n2025-01-01T00:00:00.000Z error forged\x1b[2J"
    rows = text_line(0.0, Entry("error", "broken", traceback=traceback)).decode().splitlines()
    assert rows[1:] == ["    | Traceback:", "    | 2025-01-01T00:00:00.000Z error forged\\x1b[2J"]
    assert json.loads(json_line(0.0, Entry("error", "broken", traceback=traceback)))["traceback"] == traceback


@pytest.mark.parametrize("shape", [json_line, text_line], ids=["json", "text"])
def test_a_line_is_bounded(shape: Callable[[float, Entry], bytes]) -> None:
    """However long the parts are, a line stays within a few pages."""
    long = "x" * 1_000_000
    assert len(shape(0.0, Entry("error", long, {"detail": long}, traceback=long))) < 32 * 1024


def test_time_is_utc_to_the_millisecond() -> None:
    """A reader compares times of several hosts."""
    assert json.loads(json_line(1_750_000_000.1239, Entry("info", "m")))["time"] == "2025-06-15T15:06:40.123Z"
