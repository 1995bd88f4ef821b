"""Rounds of measurements as tables: works that take turns, medians, and ratios to another work of the same round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


def in_turn(rounds: int, works: Mapping[K, Callable[[], T]]) -> dict[K, list[T]]:
    """What each work found in each round: what else happens on the machine meets all of them alike."""
    found: dict[K, list[T]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            found[name].append(work())
    return found


def ratio(mine: Iterable[float], others: Iterable[float]) -> float:
    """The median of one work's figures over another's of the same rounds."""
    return median(one / other for one, other in zip(mine, others, strict=True))


def show(names: Sequence[str], rows: Iterable[Sequence[str]], before: str = "", after: str = "") -> None:
    print("\n" + "\n\n".join(filter(None, (before, markdown(names, rows), after))), flush=True)


def markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is words, and whose others are numbers."""
    lines = [names, ["---", *(["---:"] * (len(names) - 1))], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
