"""Rounds of measurements as one table: medians, and ratios to the baseline of the same round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

BASELINE = "plain proxy"


@dataclass(frozen=True, slots=True)
class Line:
    """A work over all rounds: the median CPU time of a request, and its ratio to the baseline's in the same round."""

    name: str
    ratio: float
    cpu_us: float

    @property
    def requests_a_core(self) -> float:
        """How many requests a second keep one core busy."""
        return 1e6 / self.cpu_us


def line_of(name: str, rounds: Sequence[float], baselines: Sequence[float]) -> Line:
    """The medians of a work, of µs in each round; `baselines` are those of the same rounds."""
    return Line(name, median(mine / its for mine, its in zip(rounds, baselines, strict=True)), median(rounds))


def written(lines: Sequence[Line]) -> str:
    """The table, in Markdown."""
    names = ("CPU for a request", f"{BASELINE} = 1.00", "requests/s on a core", "CPU µs")
    rows = [(line.name, f"{line.ratio:.2f}", f"{line.requests_a_core:,.0f}", f"{line.cpu_us:.1f}") for line in lines]
    return markdown(names, rows)


def show(names: Sequence[str], rows: Iterable[Sequence[str]], before: str = "", after: str = "") -> None:
    """Print a table, and what stands around it."""
    print("\n" + "\n\n".join(filter(None, (before, markdown(names, rows), after))), flush=True)


def markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is words, and whose others are numbers."""
    lines = [names, ["---", *(["---:"] * (len(names) - 1))], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
