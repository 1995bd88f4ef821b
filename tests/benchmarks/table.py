"""Rounds of measurements as one table: medians, and ratios to the baseline of the same round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

BASELINE = "plain proxy"


@dataclass(frozen=True, slots=True)
class Figures:
    """One work in one round. `writes` are statements and bytes per operation, None where the store does not tell."""

    cpu_us: float
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    rss_mib: float
    writes: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a ratio is to come to, and what it has come to so far."""

    target: float
    reached: float

    @property
    def held(self) -> float:
        """What it is held to: the target, or what was reached where that is worse."""
        return max(self.target, self.reached)


@dataclass(frozen=True, slots=True)
class Line:
    """A work over all rounds."""

    name: str
    goal: Goal | None
    ratio: float
    figures: Figures

    @property
    def is_within(self) -> bool:
        """Whether the ratio is at most a fifth worse than what it is held to."""
        return self.goal is None or self.ratio <= 1.2 * self.goal.held


def line_of(name: str, goal: Goal | None, rounds: Sequence[Figures], baselines: Sequence[Figures]) -> Line:
    """The medians of a work; `baselines` are those of the same rounds."""
    ratio = median(mine.cpu_us / its.cpu_us for mine, its in zip(rounds, baselines, strict=True))
    writes = tuple(
        None if any(each.writes[i] is None for each in rounds) else median(each.writes[i] or 0.0 for each in rounds)
        for i in (0, 1)
    )
    cpu_us, per_second, p50_ms, p99_ms, rss_mib = (
        median(getattr(each, part) for each in rounds)
        for part in ("cpu_us", "requests_per_second", "p50_ms", "p99_ms", "rss_mib")
    )
    figures = Figures(cpu_us, per_second, p50_ms, p99_ms, rss_mib, (writes[0], writes[1]))
    return Line(name, goal, ratio, figures)


def written(lines: Sequence[Line]) -> str:
    """The table, in Markdown."""
    rows = []
    for line in lines:
        figures = line.figures
        statements, size = figures.writes
        rows.append(
            (
                line.name,
                f"{figures.cpu_us:.1f}",
                f"{line.ratio:.2f}",
                "" if line.goal is None else f"≤ {line.goal.target:.2f}",
                "" if line.goal is None else f"{line.goal.held:.2f}",
                f"{figures.requests_per_second:,.0f}",
                f"{figures.p50_ms:.2f}",
                f"{figures.p99_ms:.2f}",
                f"{figures.rss_mib:.0f}",
                "" if statements is None else f"{statements:.2f}",
                "" if size is None else f"{size:,.0f}",
            )
        )
    names = (
        "work",
        "CPU µs",
        "ratio",
        "target",
        "held to",
        "requests/s",
        "p50 ms",
        "p99 ms",
        "RSS MiB",
        "statements",
        "bytes written",
    )
    return markdown(names, rows)


def markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is words, and whose others are numbers."""
    lines = [names, ["---", *(["---:"] * (len(names) - 1))], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
