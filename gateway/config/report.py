"""Mistakes of a configuration file, as somebody who has to correct it wants to read them.

Owns how a mistake is named and printed; refuses to know what is right. Invariant: no text that came from the
environment or from a secret file, and no value of a secret key, is ever part of a mistake.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

Path = tuple[str | int, ...]

_MISTAKES_MAX = 200
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}\Z")


def path_text(path: Path) -> str:
    """A path as it is written in the documentation: `routes[0].key.header`.

    What does not look like a key may be a value, and a secret, that slipped into the place of one; it is not shown.
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _KEY.match(part) else "…")
    return text


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing to correct. `line` and `column` count from 1; they are None when the file as a whole is meant.

    `message` says what was expected, `hint`, if there is one, what to write.
    """

    file: str
    line: int | None
    column: int | None
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"
        what = f"{self.message}; {self.hint}" if self.hint else self.message
        return ": ".join(part for part in (where, self.path, what) if part)


class ConfigError(Exception):
    """The file cannot be used. `mistakes` are all that were found, in the order of the file."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(sorted(dict.fromkeys(mistakes), key=lambda m: (m.line or 0, m.column or 0, m.path)))
        super().__init__(self.mistakes)

    def __str__(self) -> str:
        lines = [str(mistake) for mistake in self.mistakes[:_MISTAKES_MAX]]
        if len(self.mistakes) > _MISTAKES_MAX:
            lines.append(f"and {len(self.mistakes) - _MISTAKES_MAX} more")
        return "\n".join(lines)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that `word` was probably meant to be."""
    by_spelling = {name.lower().replace("-", "_"): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), by_spelling, n=1, cutoff=0.6)
    return by_spelling[close[0]] if close else None


def alternatives(words: Iterable[object]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    names = [str(word) for word in words]
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
