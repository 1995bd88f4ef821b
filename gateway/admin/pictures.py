"""Pictures of what gateways did and of what an operation has been through: numbers in, places in a picture out. Pure.

`pictures.html` draws them. Each has a title, a description and its numbers as a table, for whoever cannot see it. What
differs in colour differs in texture, dash or place, too, and in a word. Where nobody counted is a gap and no zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import Final, NamedTuple

from gateway.admin.reports import moment
from gateway.admin.view import ATTEMPT, Happening, Timeline
from gateway.core.operation import MICROSECONDS, PROBE, Event
from gateway.core.verdict import Verdict
from gateway.upkeep.activity import Activity, Window

Values = Sequence[float | None]
_Read = Callable[[Activity], Values]
_Text = Callable[[float], str]

# The place of the plot in its picture, and the height of a small picture, in units of the picture.
_LEFT, _RIGHT, _TOP, _BOTTOM = 76.0, 622.0, 22.0, 166.0
_SMALL_WIDTH, _SMALL_HEIGHT = 200.0, 48.0
# How many buckets a row of a table has on a long axis, and on one that has few such rows.
_ROW_BUCKETS: Final = {"hour": (10, 2), "week": (36, 6)}
_LONG_ROWS: Final = 4
_ROWS_MIN: Final = 2
_TICKS_MAX: Final = 6
_TICK_SECONDS: Final = {"hour": (60, 120, 300, 600), "week": (1_800, 3_600, 10_800, 21_600, 43_200, 86_400)}
_SMALL_MAX: Final = 12
# What is not there yet is no gap: others save their numbers once a minute.
_FRESH_BUCKETS: Final = 3
_MARKS: Final = {"start": "▲", "reload": "◆", "clock set back": "◀", "store away": "✕"}
_TEXTURES: Final = {"fill-in-doubt": "dots", "fill-unavailable": "crosses", "fill-refused": "stripes"}

_V = Verdict
_GROUPS: Final[Mapping[str, Collection[str]]] = {
    "ran": (_V.STORED, _V.RELEASED, _V.JOURNALED, _V.UNKEYED, _V.UNPROTECTED),
    "replayed": (_V.REPLAYED, _V.RECOVERED, _V.FETCHED, _V.EVENT_DUPLICATE),
    "accepted": (_V.ACCEPTED,),
    "in doubt": (_V.IN_DOUBT,),
    "unavailable": (
        *(_V.STORE_UNAVAILABLE, _V.STORE_AMNESIA, _V.UPSTREAM_UNREACHABLE, _V.OVERLOADED),
        *(_V.IDENTITY_UNAVAILABLE, _V.BACKLOG_FULL),
    ),
}
"""The verdicts that one colour stands for; all others are refused."""


# -- numbers and texts -------------------------------------------------------------------------------------------------


def _known(values: Values) -> list[float]:
    return [value for value in values if value is not None]


def _greatest(values: Values) -> float:
    return max(_known(values), default=0.0)


def _time(at_us: int, form: str) -> str:
    return datetime.fromtimestamp(at_us / MICROSECONDS, UTC).strftime(form)


def _counted(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def _percent(value: float) -> str:
    return f"{value:.3g} %"


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 120 else f"{value / 60:,.0f} min"


# -- what is shown ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """A series of a picture: its name, how it is drawn (a class), bucket by bucket, and row by row of the table."""

    name: str
    look: str
    values: Values
    rows: Values
    text: _Text

    @property
    def texture(self) -> str:
        """What is laid over its area; empty for nothing."""
        return _TEXTURES.get(self.look, "")


class Plot(NamedTuple):
    """What is drawn on the axes: paths, each with its class and what fills it; the lines across, each with its text."""

    paths: Sequence[tuple[str, str, str]]
    ticks: Sequence[tuple[float, str]]
    times: Sequence[tuple[float, str]]
    gaps: Sequence[tuple[float, float]]
    marks: Sequence[tuple[str, str, float, str]]
    is_stacked: bool
    note: str


@dataclass(frozen=True, slots=True)
class Picture:
    """`about` says in a sentence what the picture shows. The table has a column for each line, by the time from which
    a row counts; the legend has those with a look. `parts` are small pictures: a label, a number, a title, a path."""

    id: str
    title: str
    about: str
    lines: Sequence[Line]
    table: Sequence[tuple[str, Sequence[str]]]
    plot: Plot | None = None
    parts: Sequence[tuple[str, str, str, str]] = ()
    notes: Sequence[str] = ()


def pictures(activity: Activity) -> list[Picture]:
    """All pictures of this window, or of the end of it that was counted."""
    count = len(activity.buckets)
    drawn = _Drawn(activity, activity.coarser(count // _row_buckets(activity.window, count)))
    return [
        _requests(drawn),
        _small(drawn, "route", "Requests by route", lambda values: _counted(sum(_known(values))), _counted),
        _replays(drawn),
        _doubts(drawn),
        _latency(drawn, "gateway", "The gateway's own time", "without the service's part, of requests that ran"),
        _latency(drawn, "service", "The service's time", "from the request sent to the head of its response"),
        _deliveries(drawn),
        _small(drawn, "lag", "Lag of each sink", lambda values: f"at most {_seconds(_greatest(values))}", _seconds),
    ]


def counted_part(activity: Activity) -> Activity:
    """From where anybody counted on: an axis that is nearly empty shows nothing. Rows stay whole."""
    count, first = len(activity.buckets), _first_counted(activity)
    row = _row_buckets(activity.window, count - first)
    kept = max(-(-(count - first) // row), _ROWS_MIN) * row
    window = replace(activity.window, length_us=kept * activity.window.span_us)
    since_us = activity.since_us + (count - kept) * window.span_us
    return Activity(window, since_us, activity.buckets[count - kept :], activity.why_own)


def counted_since_us(activity: Activity) -> int:
    """From when on somebody counted; 0 if from the beginning of the window on."""
    first = _first_counted(activity)
    return activity.since_us + first * activity.window.span_us if first else 0


def _first_counted(activity: Activity) -> int:
    return next((at for at, bucket in enumerate(activity.buckets) if bucket is not None), 0)


def _row_buckets(window: Window, count: int) -> int:
    many, few = _ROW_BUCKETS[window.name]
    return many if count > many * _LONG_ROWS else few


def last_in_doubt(activity: Activity) -> tuple[int, int, float]:
    """Since when a bucket lasts that knows what is in doubt, how many that are, and the seconds of the oldest; of the
    last buckets alone, zeros where they do not know."""
    for at, bucket in list(enumerate(activity.buckets))[: -_FRESH_BUCKETS - 1 : -1]:
        if bucket is not None and "open" in bucket:
            oldest = max(bucket.get("oldest_doubt", {}).values(), default=0.0)
            return activity.since_us + at * activity.window.span_us, int(sum(bucket["open"].values())), oldest
    return 0, 0, 0.0


def marks_in(activity: Activity) -> list[tuple[str, str]]:
    """The marks of this window, as shape and word."""
    found = activity.total("mark")
    return [(shape, mark) for mark, shape in _MARKS.items() if mark in found]


# -- the pictures ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What is drawn, and the same in the rows of a table."""

    fine: Activity
    coarse: Activity

    def line(self, name: str, look: str, read: _Read, text: _Text = _counted) -> Line:
        return Line(name, look, read(self.fine), read(self.coarse), text)

    def counted(
        self, name: str, look: str, kind: str, labels: Collection[str] | None = None, text: _Text = _counted
    ) -> Line:
        return self.line(name, look, lambda activity: activity.series(kind, labels), text)

    def picture(
        self, id_: str, title: str, about: str, lines: Sequence[Line], scale: _Scale | None = None, *more: Line
    ) -> Picture:
        """With a plot of curves on this scale. `more` are in the table alone."""
        coarse, columns = self.coarse, (*lines, *more)
        table = [
            (
                _time(coarse.since_us + at * coarse.window.span_us, "%Y-%m-%dT%H:%MZ"),
                ["–" if (value := line.rows[at]) is None else line.text(value) for line in columns],
            )
            for at in range(len(coarse.buckets))
        ]
        plot = None
        if scale is not None:
            curves = [(f"line {line.look}", "", _steps(line.values, _LEFT, _RIGHT, scale.y)) for line in lines]
            plot = self.plot(about, scale, curves)
        return Picture(id_, title, about, columns, table, plot)

    def plot(
        self, about: str, scale: _Scale, paths: Sequence[tuple[str, str, str]], *, is_stacked: bool = False
    ) -> Plot:
        activity, count = self.fine, len(self.fine.buckets)
        window, gaps = activity.window, _gaps(activity)
        missing = f" Nobody counted in {len(gaps)} {'stretch' if len(gaps) == 1 else 'stretches'}." if gaps else ""
        return Plot(
            paths,
            [(scale.y(tick), scale.text(tick)) for tick in scale.ticks],
            [(_x((at_us - activity.since_us) / window.span_us, count), text) for at_us, text in _times(activity)],
            [(_x(first, count), _x(end, count) - _x(first, count)) for first, end in gaps],
            [
                (mark, _time(activity.since_us + at * window.span_us, "%Y-%m-%dT%H:%M:%SZ"), _x(at, count), shape)
                for at, bucket in enumerate(activity.buckets)
                for mark in (bucket or {}).get("mark", ())
                for shape in (_MARKS.get(mark, "●"),)
            ],
            is_stacked,
            f"{about} Times are UTC.{missing}",
        )


def _requests(drawn: _Drawn) -> Picture:
    verdicts = drawn.fine.total("verdict")
    groups = {**_GROUPS, "refused": frozenset(verdicts).difference(*_GROUPS.values())}
    lines = [drawn.counted(name, f"fill-{name.replace(' ', '-')}", "verdict", names) for name, names in groups.items()]
    total = sum(verdicts.values())
    about = f"{_counted(total)} {'request' if total == 1 else 'requests'} on protected routes."
    notes = [f"{name}: {_counted(number)}" for name, number in sorted(verdicts.items(), key=lambda each: -each[1])]
    scale, paths = _stacked(lines)
    picture = drawn.picture("requests", "Requests by verdict", about, lines)
    return replace(picture, plot=drawn.plot(about, scale, paths, is_stacked=True), notes=notes)


def _replays(drawn: _Drawn) -> Picture:
    def share(activity: Activity) -> Values:
        pairs = zip(activity.series("verdict", _GROUPS["replayed"]), activity.series("verdict"), strict=True)
        return [100 * (one or 0.0) / all_ if all_ else None for one, all_ in pairs]

    lines = [drawn.line("replayed", "line-1", share, _percent)]
    (whole,) = share(drawn.fine.coarser(1))
    about = "No request in this time." if whole is None else f"{_percent(whole)} of the requests were replayed."
    return drawn.picture("replays", "Share of replays", about, lines, _Scale(100.0, _percent))


def _known_open(activity: Activity) -> Values:
    """A process that has just started has not asked the store yet: that is no zero."""
    pairs = zip(activity.buckets, activity.series("open"), strict=True)
    return [number if "open" in (bucket or {}) else None for bucket, number in pairs]


def _doubts(drawn: _Drawn) -> Picture:
    resolved, coarse = drawn.fine.resolved(), drawn.coarse.buckets
    size = len(resolved) // len(coarse)
    ended = [sum(_known(resolved[at * size :][:size])) for at in range(len(coarse))]
    rows = [None if bucket is None else number for bucket, number in zip(coarse, ended, strict=True)]
    opened = drawn.counted("opened", "line-2", "opened")
    still = drawn.line("open", "line-4 dotted", _known_open)
    lines = [opened, Line("resolved", "line-3 dashed", resolved, rows, _counted), still]
    about = f"{_counted(sum(_known(opened.values)))} opened, {_counted(sum(_known(resolved)))} resolved"
    known = _known(still.values)
    about += f"; {_counted(known[-1])} open when last counted." if known else ". How many are open was not counted yet."
    return drawn.picture("doubts", "Doubts", about, lines, _scale_of(lines))


def _latency(drawn: _Drawn, kind: str, title: str, what: str) -> Picture:
    def quantile(share: float) -> _Read:
        return lambda activity: activity.quantiles(kind, share)

    looks = (("p50", "line-1", 0.5), ("p99", "line-2 dashed", 0.99))
    lines = [drawn.line(name, look, quantile(share), _seconds) for name, look, share in looks]
    half, most = (quantile(share)(drawn.fine.coarser(1))[0] for *_, share in looks)
    about = f"Nothing ran in this time ({what})."
    if half is not None and most is not None:
        about = f"Half within {_seconds(half)}, 99 of 100 within {_seconds(most)}: {what}."
    return drawn.picture(kind, title, about, lines, _logarithmic(lines))


def _deliveries(drawn: _Drawn) -> Picture:
    lines = [
        drawn.counted("accepted", "line-1", "accepted"),
        drawn.counted("attempts to deliver", "line-3 dashed", "delivery"),
        drawn.counted("waiting", "line-4 dotted", "waiting"),
    ]
    oldest = drawn.counted("age of the oldest", "", "oldest_waiting", text=_seconds)
    accepted, tried = (_counted(sum(_known(line.values))) for line in lines[:2])
    about = f"{accepted} accepted, {tried} attempts to deliver."
    scale = _scale_of(lines) if any(_greatest(line.values) for line in lines) else None
    picture = drawn.picture("deliveries", "Acceptances and deliveries", about, lines, scale, oldest)
    age = f"at most {_seconds(_greatest(oldest.values))}"
    return picture if scale is None else replace(picture, parts=[("Age of the oldest", age, *_spark(oldest))])


def _small(drawn: _Drawn, kind: str, title: str, number: Callable[[Values], str], text: _Text) -> Picture:
    """A small picture for each name, those with the greatest numbers first; all with one scale."""
    names = [name for name, _ in sorted(drawn.fine.total(kind).items(), key=lambda each: (-each[1], each[0]))]
    lines = [drawn.counted(name or "(others)", "", kind, (name,), text) for name in names[:_SMALL_MAX]]
    most = max((_greatest(line.values) for line in lines), default=0.0)
    left = f" {len(names) - _SMALL_MAX} more are not shown." if len(names) > _SMALL_MAX else ""
    about = f"Each on the same scale.{left}" if names else "There is none yet."
    parts = [(line.name, number(line.values), *_spark(line, most)) for line in lines]
    return replace(drawn.picture(kind, title, about, lines), parts=parts)


# -- places ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scale:
    """From 0, or by powers of ten from `least`, to `most`."""

    most: float
    text: _Text
    least: float = 0.0

    def y(self, value: float) -> float:
        if self.least:
            share = math.log(max(value, self.least) / self.least) / math.log(self.most / self.least)
        else:
            share = value / self.most if self.most else 0.0
        return _BOTTOM - min(share, 1.0) * (_BOTTOM - _TOP)

    @property
    def ticks(self) -> list[float]:
        if not self.least:
            return [0.0, self.most / 2, self.most]
        return [self.least * 10**power for power in range(round(math.log10(self.most / self.least)) + 1)]


def _scale_of(lines: Sequence[Line]) -> _Scale:
    return _Scale(_round_up(max(_greatest(line.values) for line in lines)), _counted)


def _logarithmic(lines: Sequence[Line]) -> _Scale:
    found = [value for line in lines for value in line.values if value]
    least = 10.0 ** math.floor(math.log10(min(found, default=0.001)))
    return _Scale(max(least * 10, 10.0 ** math.ceil(math.log10(max(found, default=1.0)))), _seconds, least)


def _round_up(value: float) -> float:
    """The next number that is even and round."""
    if value <= 2:
        return 2.0
    step = 10.0 ** math.floor(math.log10(value))
    return next(each * step for each in (1, 2, 4, 6, 8, 10) if each * step >= value)


def _x(at: float, count: int) -> float:
    return _LEFT + at * (_RIGHT - _LEFT) / count


def _stacked(lines: Sequence[Line]) -> tuple[_Scale, list[tuple[str, str, str]]]:
    """Areas that lie on one another: each reaches down to the axis, and is covered by those that lie below it."""
    sums: list[Values] = [[None if value is None else 0.0 for value in lines[0].values]]
    for line in lines:
        pairs = zip(sums[-1], line.values, strict=True)
        sums.append([None if low is None else low + (value or 0.0) for low, value in pairs])
    scale, drawn = _Scale(_round_up(_greatest(sums[-1])), _counted), list[tuple[str, str, str]]()
    for line, high in reversed(list(zip(lines, sums[1:], strict=True))):
        if any(line.values):
            path = _steps(high, _LEFT, _RIGHT, scale.y, _BOTTOM)
            drawn += [(line.look, "", path), *([("", line.texture, path)] if line.texture else [])]
    return scale, drawn


def _steps(values: Values, left: float, right: float, y: Callable[[float], float], base: float | None = None) -> str:
    """A path from bucket to bucket, broken where there is no number; down to the `base` and closed, if there is one."""
    width = (right - left) / len(values)
    # The last bucket is not over yet, and would look like a fall.
    whole = values[:-1] if len(values) > 1 and values[-2] is not None else values
    parts, before = list[str](), None
    for at, value in enumerate([*whole, None]):
        x = left + at * width
        if value == before:
            continue
        if before is not None:
            parts.append(f"H{x:.1f}")
        if value is None:
            parts.append("" if base is None else f"V{base}Z")
        elif before is not None:
            parts.append(f"V{y(value):.1f}")
        else:
            parts.append(f"M{x:.1f} {y(value):.1f}" if base is None else f"M{x:.1f} {base}V{y(value):.1f}")
        before = value
    return "".join(parts)


def _spark(line: Line, most: float = 0.0) -> tuple[str, str]:
    """The title and the path of a small picture without axes, with the given scale or its own."""
    top = most or _greatest(line.values) or 1.0

    def y(value: float) -> float:
        return _SMALL_HEIGHT - 2 - value / top * (_SMALL_HEIGHT - 4)

    return line.name, _steps(line.values, 0.0, _SMALL_WIDTH, y)


def _gaps(activity: Activity) -> list[tuple[int, int]]:
    """From where to where nobody counted."""
    found, end, count = [], 0, len(activity.buckets)
    for is_gap, stretch in groupby(bucket is None for bucket in activity.buckets):
        first, end = end, end + len(list(stretch))
        if is_gap and not (end == count and end - first <= _FRESH_BUCKETS):
            found.append((first, end))
    return found


def _times(activity: Activity) -> list[tuple[int, str]]:
    length_us = activity.window.length_us
    steps = [seconds * MICROSECONDS for seconds in _TICK_SECONDS[activity.window.name]]
    step_us = next((each for each in steps if length_us <= _TICKS_MAX * each), steps[-1])
    first = -(-activity.since_us // step_us)
    places = range(first * step_us, activity.since_us + length_us, step_us)
    return [(at_us, _time(at_us, "%H:%M" if at_us % (86_400 * MICROSECONDS) else "%a")) for at_us in places]


# -- a history ---------------------------------------------------------------------------------------------------------
#
# A strip on a time axis; all that it says, the list below it says in words. Attempts take milliseconds and doubts days.
# So the longer a gap between two moments is, the more it is shortened: the order is exact, and lengths are for
# comparison alone.

_STRIP_LEFT, _STRIP_RIGHT = 96, 944
_BAR_MIN: Final = 3.0
# Below this no gap is shorter: two moments never are in one place.
_GAP_MIN: Final = 0.5
_ENDED_WELL: Final = frozenset((Event.COMPLETE, Event.RELEASE, Event.FORGET, Event.POSTPONE))


class Strip(NamedTuple):
    """`doubts` have a text, a place and a width; each of `happenings` has a kind besides, and no width if it is none
    of the attempts."""

    about: str
    since: str
    until: str
    doubts: Sequence[tuple[str, float, float]]
    happenings: Sequence[tuple[str, str, float, float]]


def strip(timeline: Timeline, now_us: int) -> Strip | None:
    """None where nothing happened. What is not over ends at `now_us`; a store's clock that was set back shows no time
    before the beginning."""
    if not timeline.happenings:
        return None
    ends = [max(each.at_us, now_us if each.until_us is None else each.until_us) for each in timeline.happenings]
    doubts = [(since_us, now_us if until_us is None else until_us) for since_us, until_us in timeline.doubts]
    moments = [each.at_us for each in timeline.happenings]
    moments += [until_us for each, until_us in zip(timeline.happenings, ends, strict=True) if each.event == ATTEMPT]
    moments += [at_us for doubt in doubts for at_us in doubt]
    x = _places(moments)

    def width(since_us: int, until_us: int) -> float:
        return max(_BAR_MIN, x[max(since_us, until_us)] - x[since_us])

    def shape(each: Happening, until_us: int) -> tuple[str, str, float, float]:
        text = f"{moment(each.at_us)} {each.text}"
        if each.event == ATTEMPT:
            kind = "attempt well" if each.ended in _ENDED_WELL else "attempt"
            return kind, text, x[each.at_us], width(each.at_us, until_us)
        return "probe" if each.event == PROBE else "decision", text, x[each.at_us], 0.0

    return Strip(
        _described(timeline.happenings, len(doubts)),
        moment(min(moments)),
        moment(max(moments)),
        [(f"in doubt from {moment(since)} to {moment(end)}", x[since], width(since, end)) for since, end in doubts],
        [shape(each, until_us) for each, until_us in zip(timeline.happenings, ends, strict=True)],
    )


def _places(moments: Iterable[int]) -> dict[int, float]:
    ordered = sorted(set(moments))
    places = [0.0]
    for before, after in pairwise(ordered):
        places.append(places[-1] + _GAP_MIN + math.log1p((after - before) / MICROSECONDS))
    scale = (_STRIP_RIGHT - _STRIP_LEFT) / (places[-1] or 1.0)
    return {at_us: _STRIP_LEFT + place * scale for at_us, place in zip(ordered, places, strict=True)}


def _described(happenings: Iterable[Happening], doubts: int) -> str:
    events = [each.event for each in happenings]
    attempts, probes = events.count(ATTEMPT), events.count(PROBE)
    counted = {"attempts": attempts, "doubts": doubts, "probes": probes, "others": len(events) - attempts - probes}
    return f"{', '.join(f'{number} {name}' for name, number in counted.items())}; the list below tells each of them."
