"""How durations, sizes, counts, flags and names are written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from gateway.config.leaf import SUBSTITUTED, Leaf, wrong

_DURATION = re.compile(r"(0|[1-9][0-9]{0,9})(ms|s|m|h|d)\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(0|[1-9][0-9]{0,12})(KiB|MiB|GiB)?\Z")
_BYTES = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,12})\Z")
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"


def duration_seconds(text: str) -> float | None:
    """`300ms`, `5s`, `2m`, `24h`, `7d` in seconds, or None."""
    found = _DURATION.match(text)
    return None if found is None else int(found[1]) * _SECONDS[found[2]]


def duration_text(seconds: float) -> str:
    """How a duration is usually written (a day is 24h); `duration_seconds` reads it."""
    milliseconds = round(seconds * 1000)
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds and milliseconds % factor == 0 and (unit, milliseconds) != ("d", factor):
            return f"{milliseconds // factor}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0s"


def size_bytes(text: str) -> int | None:
    """`4096`, `64KiB`, `1MiB`, `2GiB` in bytes, or None."""
    found = _SIZE.match(text)
    return None if found is None else int(found[1]) * _BYTES[found[2] or ""]


def size_text(size: int) -> str:
    """The shortest way to write a size; `size_bytes` reads it."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return str(size)


@dataclass(frozen=True)
class Duration(Leaf):
    """A duration within bounds that are written like it; the value is in seconds."""

    least: str
    most: str

    expected = "a duration such as 300ms, 5s, 2m, 24h or 7d"

    def read(self, text: str) -> float:
        seconds = duration_seconds(text)
        if seconds is None:
            raise self.unexpected(_duration_hint(text))
        if seconds < (duration_seconds(self.least) or 0) or seconds > (duration_seconds(self.most) or 0):
            raise wrong(f"expected a duration from {self.least} to {self.most}")
        return seconds

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": rf"^((0|[1-9][0-9]*)(ms|s|m|h|d){SUBSTITUTED})$"}


def _duration_hint(text: str) -> str:
    if _NUMBER.match(text):
        return f"write {text}s"
    found = re.match(r"([0-9]{1,9})\s*(ms|milli|s|m|h|d)[a-z]*\Z", text.strip().lower())
    return f"write {int(found[1])}{'ms' if found[2] == 'milli' else found[2]}" if found else ""


@dataclass(frozen=True)
class Size(Leaf):
    """A size within bounds that are written like it; the value is in bytes."""

    least: str
    most: str

    expected = "a size such as 64KiB, 1MiB or a number of bytes"

    def read(self, text: str) -> int:
        size = size_bytes(text)
        if size is None:
            found = re.match(r"([0-9]{1,12})\s*([kmg])i?b?\Z", text.strip().lower())
            raise self.unexpected(f"write {int(found[1])}{found[2].upper()}iB" if found else "")
        if size < (size_bytes(self.least) or 0) or size > (size_bytes(self.most) or 0):
            raise wrong(f"expected a size from {self.least} to {self.most}")
        return size

    def json_schema(self) -> dict[str, Any]:
        pattern = rf"^((0|[1-9][0-9]*)(KiB|MiB|GiB)?{SUBSTITUTED})$"
        return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": pattern}]}


@dataclass(frozen=True)
class Count(Leaf):
    """A whole number within bounds. Where it `may_be_auto`, the value is the word then."""

    least: int
    most: int
    may_be_auto: bool = False

    @property
    def expected(self) -> str:
        return f"a whole number from {self.least} to {self.most}" + (", or auto" if self.may_be_auto else "")

    def read(self, text: str) -> int | str:
        if self.may_be_auto and text == "auto":
            return text
        if not _NUMBER.match(text) or not self.least <= int(text) <= self.most:
            raise self.unexpected()
        return int(text)

    def json_schema(self) -> dict[str, Any]:
        number = {"type": "integer", "minimum": self.least, "maximum": self.most}
        return {"anyOf": [number, {"enum": ["auto"]}]} if self.may_be_auto else number


class Flag(Leaf):
    """`true` or `false`, and no other spelling."""

    expected = "true or false"

    def read(self, text: str) -> bool:
        if text not in ("true", "false"):
            raise self.unexpected()
        return text == "true"

    def json_schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


class Name(Leaf):
    """A name that can stand in a metric label, a log line and a digest's input."""

    expected = "a name of 1 to 64 letters, digits, '_', '-' and '.'"

    def read(self, text: str) -> str:
        if not re.fullmatch(_NAME, text):
            raise self.unexpected()
        return text

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^({_NAME}{SUBSTITUTED})$"}
