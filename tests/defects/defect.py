"""A deliberate defect as a value: which texts of the product become which, and the tests that must notice.

It owns how a defect is put into a copy of the product. A text that is not there exactly once is an error and never a
defect that was not put in: a proof that quietly stopped proving would be worse than none.

How `read` has them written, one after the other; an edit goes on until the next line that names a file or a defect:

    name-of-the-defect: what it does wrong
        more of that
      file/within/gateway.py tests/test_one.py::test_that_notices
      tests/test_another.py::test_that_notices
    -what the file has once, a line or a part of it
    +what it has instead
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PRODUCT = "gateway"


class NotThere(Exception):
    """The product has changed: the text that a defect replaces is no longer there, or no longer once."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In `file`, a path within the product's package, the one place that reads `old` reads `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Defect:
    """`breaks` says what it does wrong, `caught_by` are node ids of tests of which at least one must fail with it."""

    name: str
    breaks: str
    edits: tuple[Edit, ...]
    caught_by: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.edits or not self.caught_by:
            raise ValueError(f"{self.name} changes nothing, or nobody has to notice")


def read(text: str) -> tuple[Defect, ...]:
    return tuple(_read_one(each.split("\n")) for each in re.split(r"\n(?=[a-z0-9][a-z0-9-]*: )", text.strip("\n")))


def _read_one(lines: list[str]) -> Defect:
    heads: list[str] = []
    tests: list[str] = []
    edits: list[tuple[str, list[str], list[str]]] = []
    for line in lines:
        if line.startswith(("-", "+")):
            edits[-1][1 if line.startswith("-") else 2].append(line[1:])
        elif line.startswith("    ") or not line.startswith(" "):
            heads.append(line.strip())
        else:
            file, *named = re.split(r" (?=tests/)", line[1:])
            tests += named
            edits += [(file.strip(), [], [])] if file else []
    name, _, breaks = " ".join(heads).partition(": ")
    return Defect(
        name, breaks, tuple(Edit(file, "\n".join(old), "\n".join(new)) for file, old, new in edits), tuple(tests)
    )


def put_in(defect: Defect, root: Path) -> None:
    """Put the defect into the copy of the product at `root`. Raises `NotThere`, having changed nothing."""
    for path, text in changed(defect, root).items():
        # The file may be one with the original's: it is replaced, never written to.
        path.unlink()
        path.write_text(text, "utf-8")


def changed(defect: Defect, root: Path) -> dict[Path, str]:
    """What the files of the product at `root` would be with the defect. Raises `NotThere`."""
    texts: dict[Path, str] = {}
    for edit in defect.edits:
        path = root / PRODUCT / edit.file
        text = texts[path] if path in texts else _text(defect, path)
        if (times := text.count(edit.old)) != 1:
            raise NotThere(
                f"{defect.name}: in {edit.file} the text is there {times} times instead of once:\n{edit.old}"
            )
        texts[path] = text.replace(edit.old, edit.new)
    return texts


def _text(defect: Defect, path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError as error:
        raise NotThere(f"{defect.name}: there is no {path.name} any more") from error
