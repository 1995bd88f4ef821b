"""How a line of the log looks: one JSON object, or text for people.

Owns the shape of a line and its safety: whatever is said, a line is one line of printable characters and of bounded
length, and the value of a field cannot pass for another field. Knows nothing of what is logged.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Protocol

_MESSAGE_CHARS_MAX: Final = 4096
_VALUE_CHARS_MAX: Final = 512
_TRACEBACK_CHARS_MAX: Final = 16 * 1024
_CUT: Final = "…"
_encode: Final = json.JSONEncoder(check_circular=False).encode
_BARE = re.compile(r"[A-Za-z0-9_.:/@%+-]+\Z")

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Entry:
    """What a line says. Fields that are None are left out.

    `detail` are the fields that JSON has and a reader of text finds in the message already.
    """

    level: str
    message: str
    fields: dict[str, Value] = field(default_factory=dict)
    detail: dict[str, Value] = field(default_factory=dict)
    traceback: str | None = None


class Shape(Protocol):
    """From what is said, and when (seconds since the epoch), to a line with its newline. Never raises."""

    def __call__(self, seconds: float, entry: Entry) -> bytes: ...


def json_line(seconds: float, entry: Entry) -> bytes:
    """One object in ASCII, which escapes whatever a terminal, a shell or a collector might stumble over."""
    said: dict[str, Value] = {
        "time": _time(seconds),
        "level": entry.level,
        "message": _cut(entry.message, _MESSAGE_CHARS_MAX),
    }
    for name, value in (entry.detail | entry.fields).items():
        if value is not None:
            said[name] = _cut(value, _VALUE_CHARS_MAX) if isinstance(value, str) else value
    if entry.traceback is not None:
        said["traceback"] = _cut(entry.traceback, _TRACEBACK_CHARS_MAX)
    return (_encode(said) + "\n").encode("ascii")


def text_line(seconds: float, entry: Entry) -> bytes:
    """Time, level, message, and what else is known as `name=value`; a traceback follows, indented."""
    parts = [_time(seconds), f"{entry.level:<7}", _printable(_cut(entry.message, _MESSAGE_CHARS_MAX))]
    parts += [f"{name}={_value(value)}" for name, value in entry.fields.items() if value is not None]
    line = " ".join(parts)
    if entry.traceback is not None:
        rows = _cut(entry.traceback, _TRACEBACK_CHARS_MAX).split("\n")
        line = "\n    | ".join([line, *map(_printable, rows)])
    return line.encode() + b"\n"


def _time(seconds: float) -> str:
    """UTC, to the millisecond (RFC 3339)."""
    whole = int(seconds)
    return f"{_second(whole)}.{int((seconds - whole) * 1000):03d}Z"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _value(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    text = _cut(str(value), _VALUE_CHARS_MAX)
    return text if _BARE.match(text) else json.dumps(text)


def _cut(text: str, chars_max: int) -> str:
    if text.isascii() and len(text) <= chars_max:
        return text
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= chars_max else text[:chars_max] + _CUT


def _printable(text: str) -> str:
    """The text with everything that moves a cursor, or the eye, written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
