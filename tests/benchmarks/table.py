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
    p50_ms: float
    p99_ms: float
    rss_mib: float
    writes: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True, slots=True)
class Line:
    """A work over all rounds: its medians. `ratio` is that of its CPU time to the baseline's in the same round."""

    name: str
    ratio: float
    figures: Figures

    @property
    def requests_a_core(self) -> float:
        """How many requests a second keep one core busy."""
        return 1e6 / self.figures.cpu_us


def line_of(name: str, rounds: Sequence[Figures], baselines: Sequence[Figures]) -> Line:
    """The medians of a work; `baselines` are those of the same rounds."""
    ratio = median(mine.cpu_us / its.cpu_us for mine, its in zip(rounds, baselines, strict=True))
    writes = tuple(
        None if any(each.writes[i] is None for each in rounds) else median(each.writes[i] or 0.0 for each in rounds)
        for i in (0, 1)
    )
    cpu_us, p50_ms, p99_ms, rss_mib = (
        median(getattr(each, part) for each in rounds) for part in ("cpu_us", "p50_ms", "p99_ms", "rss_mib")
    )
    return Line(name, ratio, Figures(cpu_us, p50_ms, p99_ms, rss_mib, (writes[0], writes[1])))


def written(lines: Sequence[Line]) -> str:
    """The table, in Markdown."""
    rows = []
    for line in lines:
        figures = line.figures
        statements, size = figures.writes
        rows.append(
            (
                line.name,
                f"{line.ratio:.2f}",
                f"{line.requests_a_core:,.0f}",
                f"{figures.cpu_us:.1f}",
                f"{figures.p50_ms:.2f}",
                f"{figures.p99_ms:.2f}",
                f"{figures.rss_mib:.0f}",
                "" if statements is None else f"{statements:.2f}",
                "" if size is None else f"{size:,.0f}",
            )
        )
    names = (
        *("CPU for a request", f"{BASELINE} = 1.00", "requests/s on a core", "CPU µs"),
        *("p50 ms", "p99 ms", "RSS MiB", "statements", "bytes written"),
    )
    return markdown(names, rows)


def markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is words, and whose others are numbers."""
    lines = [names, ["---", *(["---:"] * (len(names) - 1))], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
