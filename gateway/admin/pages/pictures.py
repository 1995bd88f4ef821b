"""Pictures of what gateways did: numbers in, SVG out. Pure.

Each has a title, a description and its numbers as a table, for whoever cannot see it. What differs in colour differs in
texture, dash or place, too, and in a word. There is no style in the markup, because the console's policy allows none:
classes choose the colours, for light and dark. Where nobody counted there is a gap and no zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from math import log1p
from typing import Final

from markupsafe import Markup

from gateway.admin.view import ATTEMPT, Happening, Told, moment
from gateway.core.history import PROBE
from gateway.core.operation import MICROSECONDS, Event
from gateway.core.verdict import Verdict
from gateway.observe.activity import Activity, Window

Values = Sequence[float | None]

# The place of the plot in its picture, in units of the picture.
_WIDTH, _HEIGHT = 640.0, 200.0
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

_GROUPS: Final[Mapping[str, frozenset[str]]] = {
    "ran": frozenset((Verdict.STORED, Verdict.RELEASED, Verdict.JOURNALED, Verdict.UNKEYED, Verdict.UNPROTECTED)),
    "replayed": frozenset((Verdict.REPLAYED, Verdict.RECOVERED, Verdict.FETCHED, Verdict.EVENT_DUPLICATE)),
    "accepted": frozenset((Verdict.ACCEPTED,)),
    "in doubt": frozenset((Verdict.IN_DOUBT,)),
    "unavailable": frozenset(
        (
            *(Verdict.STORE_UNAVAILABLE, Verdict.STORE_AMNESIA, Verdict.UPSTREAM_UNREACHABLE, Verdict.OVERLOADED),
            *(Verdict.IDENTITY_UNAVAILABLE, Verdict.BACKLOG_FULL),
        )
    ),
}
"""The verdicts that one colour stands for; all others are refused."""


# -- numbers and texts -------------------------------------------------------------------------------------------------


def _total(values: Values) -> float:
    return sum(value for value in values if value is not None)


def _greatest(values: Values) -> float:
    return max((value for value in values if value is not None), default=0.0)


def _last(values: Values) -> float:
    return next((value for value in reversed(values) if value is not None), 0.0)


def _moment(activity: Activity, at: int) -> str:
    return _time(activity.since_us + at * activity.window.span_us, "%Y-%m-%dT%H:%M:%SZ")


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
    text: Callable[[float], str]

    @property
    def texture(self) -> str:
        """What is laid over its area; empty for nothing."""
        return _TEXTURES.get(self.look, "")


@dataclass(frozen=True, slots=True)
class Picture:
    """`about` says in a sentence what the picture shows. The table has a column for each line, by the time from which
    a row counts; the legend has those with a look. `parts` are small pictures, each with a name and a number."""

    id: str
    title: str
    about: str
    svg: str
    lines: Sequence[Line]
    table: Sequence[tuple[str, Sequence[str]]]
    parts: Sequence[tuple[str, str, Markup]] = ()
    notes: Sequence[str] = ()


def pictures(activity: Activity) -> list[Picture]:
    """All pictures of this window, or of the end of it that was counted."""
    count = len(activity.buckets)
    drawn = _Drawn(activity, activity.coarser(count // _row_buckets(activity.window, count)))
    return [
        _requests(drawn),
        _small(drawn, "route", "Requests by route", lambda values: _counted(_total(values)), _counted),
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

_Read = Callable[[Activity], Values]


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What is drawn, and the same in the rows of a table."""

    fine: Activity
    coarse: Activity

    def line(self, name: str, look: str, read: _Read, text: Callable[[float], str] = _counted) -> Line:
        return Line(name, look, read(self.fine), read(self.coarse), text)

    def counted(self, name: str, look: str, kind: str, labels: Collection[str] | None = None) -> Line:
        return self.line(name, look, lambda activity: activity.series(kind, labels))

    def picture(
        self, id_: str, title: str, about: str, lines: Sequence[Line], plot: tuple[Markup, _Scale] | None, *more: Line
    ) -> Picture:
        """`more` are in the table alone."""
        svg = "" if plot is None else _framed(self.fine, id_, title, about, *plot)
        since_us, span_us, columns = self.coarse.since_us, self.coarse.window.span_us, (*lines, *more)
        table = [
            (
                _time(since_us + at * span_us, "%Y-%m-%dT%H:%MZ"),
                ["–" if (value := line.rows[at]) is None else line.text(value) for line in columns],
            )
            for at in range(len(self.coarse.buckets))
        ]
        return Picture(id_, title, about, svg, columns, table)


def _requests(drawn: _Drawn) -> Picture:
    verdicts = drawn.fine.total("verdict")
    groups = {**_GROUPS, "refused": frozenset(verdicts) - frozenset().union(*_GROUPS.values())}
    lines = [drawn.counted(name, f"fill-{name.replace(' ', '-')}", "verdict", names) for name, names in groups.items()]
    total = sum(verdicts.values())
    about = f"{_counted(total)} {'request' if total == 1 else 'requests'} on protected routes."
    notes = [f"{name}: {_counted(number)}" for name, number in sorted(verdicts.items(), key=lambda each: -each[1])]
    return replace(drawn.picture("requests", "Requests by verdict", about, lines, _stacked(lines)), notes=notes)


def _replays(drawn: _Drawn) -> Picture:
    def share(activity: Activity) -> Values:
        pairs = zip(activity.series("verdict", _GROUPS["replayed"]), activity.series("verdict"), strict=True)
        return [100 * (one or 0.0) / all_ if all_ else None for one, all_ in pairs]

    lines = [drawn.line("replayed", "line-1", share, _percent)]
    (whole,) = share(drawn.fine.coarser(1))
    about = "No request in this time." if whole is None else f"{_percent(whole)} of the requests were replayed."
    return drawn.picture("replays", "Share of replays", about, lines, _curves(lines, _Scale(100.0, _percent)))


def _known_open(activity: Activity) -> Values:
    """A process that has just started has not asked the store yet: that is no zero."""
    pairs = zip(activity.buckets, activity.series("open"), strict=True)
    return [number if "open" in (bucket or {}) else None for bucket, number in pairs]


def _doubts(drawn: _Drawn) -> Picture:
    resolved = drawn.fine.resolved()
    size = len(resolved) // len(drawn.coarse.buckets)
    rows = [None if bucket is None else 0.0 for bucket in drawn.coarse.buckets]
    rows = [row if row is None else _total(resolved[at * size :][:size]) for at, row in enumerate(rows)]
    lines = [
        drawn.counted("opened", "line-2", "opened"),
        Line("resolved", "line-3 dashed", resolved, rows, _counted),
        drawn.line("open", "line-4 dotted", _known_open),
    ]
    opened, ended, still = (_total(lines[0].values), _total(resolved), _last(lines[2].values))
    about = f"{_counted(opened)} opened, {_counted(ended)} resolved"
    is_known = any(value is not None for value in lines[2].values)
    about += f"; {_counted(still)} open when last counted." if is_known else ". How many are open was not counted yet."
    return drawn.picture("doubts", "Doubts", about, lines, _curves(lines, _scale_of(lines)))


def _latency(drawn: _Drawn, kind: str, title: str, what: str) -> Picture:
    def quantile(share: float) -> _Read:
        return lambda activity: activity.quantiles(kind, share)

    looks = (("p50", "line-1", 0.5), ("p99", "line-2 dashed", 0.99))
    lines = [drawn.line(name, look, quantile(share), _seconds) for name, look, share in looks]
    half, most = (quantile(share)(drawn.fine.coarser(1))[0] for *_, share in looks)
    about = f"Nothing ran in this time ({what})."
    if half is not None and most is not None:
        about = f"Half within {_seconds(half)}, 99 of 100 within {_seconds(most)}: {what}."
    return drawn.picture(kind, title, about, lines, _curves(lines, _logarithmic(lines)))


def _deliveries(drawn: _Drawn) -> Picture:
    lines = [
        drawn.counted("accepted", "line-1", "accepted"),
        drawn.counted("attempts to deliver", "line-3 dashed", "delivery"),
        drawn.counted("waiting", "line-4 dotted", "waiting"),
    ]
    oldest = replace(drawn.counted("age of the oldest", "", "oldest_waiting"), text=_seconds)
    age = f"at most {_seconds(_greatest(oldest.values))}"
    accepted, tried = _total(lines[0].values), _total(lines[1].values)
    about = f"{_counted(accepted)} accepted, {_counted(tried)} attempts to deliver."
    plot = _curves(lines, _scale_of(lines)) if any(_greatest(line.values) for line in lines) else None
    picture = drawn.picture("deliveries", "Acceptances and deliveries", about, lines, plot, oldest)
    return picture if plot is None else replace(picture, parts=[("Age of the oldest", age, _spark(oldest))])


def _small(
    drawn: _Drawn, kind: str, title: str, number: Callable[[Values], str], text: Callable[[float], str]
) -> Picture:
    """A small picture for each name, those with the greatest numbers first; all with one scale."""
    found = sorted(drawn.fine.total(kind).items(), key=lambda each: (-each[1], each[0]))
    names = [name for name, _ in found[:_SMALL_MAX]]
    lines = [replace(drawn.counted(name or "(others)", "", kind, (name,)), text=text) for name in names]
    most = max((_greatest(line.values) for line in lines), default=0.0)
    left = f" {len(found) - len(names)} more are not shown." if len(found) > len(names) else ""
    about = f"Each on the same scale.{left}" if names else "There is none yet."
    parts = [(line.name, number(line.values), _spark(line, most)) for line in lines]
    return replace(drawn.picture(kind, title, about, lines, None), parts=parts)


# -- drawing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scale:
    """From 0, or by powers of ten from `least`, to `most`."""

    most: float
    text: Callable[[float], str]
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


def _curves(lines: Sequence[Line], scale: _Scale) -> tuple[Markup, _Scale]:
    """Lines that go from bucket to bucket in steps."""
    text = Markup('<path class="line {}" d="{}"/>')
    drawn = (text.format(line.look, _steps(line.values, _LEFT, _RIGHT, scale.y)) for line in lines)
    return Markup("").join(drawn), scale


def _stacked(lines: Sequence[Line]) -> tuple[Markup, _Scale]:
    """Areas that lie on one another: each reaches down to the axis, and is covered by those that lie below it."""
    sums: list[Values] = [[None if value is None else 0.0 for value in lines[0].values]]
    for line in lines:
        pairs = zip(sums[-1], line.values, strict=True)
        sums.append([None if low is None else low + (value or 0.0) for low, value in pairs])
    scale = _Scale(_round_up(_greatest(sums[-1])), _counted)
    drawn = [_PATTERNS]
    for line, high in reversed(list(zip(lines, sums[1:], strict=True))):
        if _total(line.values):
            path = _steps(high, _LEFT, _RIGHT, scale.y, _BOTTOM)
            drawn.append(Markup('<path class="{}" d="{}"/>').format(line.look, path))
            if line.texture:
                drawn.append(Markup('<path fill="url(#{})" d="{}"/>').format(line.texture, path))
    return Markup("").join(drawn), scale


_TEXTURES: Final = {"fill-in-doubt": "dots", "fill-unavailable": "crosses", "fill-refused": "stripes"}
_PATTERNS: Final = Markup(
    '<defs><pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse"><circle class="texture" cx="3" cy="3"'
    ' r="1.2"/></pattern><pattern id="crosses" width="7" height="7" patternUnits="userSpaceOnUse"><path class="thread"'
    ' d="M0 0L7 7M7 0L0 7"/></pattern><pattern id="stripes" width="5" height="5" patternUnits="userSpaceOnUse"><path'
    ' class="thread" d="M0 5L5 0"/></pattern></defs>'
)


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


def _runs(values: Values) -> list[tuple[int, int]]:
    """From where to where there are numbers, without a gap."""
    found, first = list[tuple[int, int]](), None
    for at, value in enumerate([*values, None]):
        if value is not None and first is None:
            first = at
        elif value is None and first is not None:
            found.append((first, at))
            first = None
    return found


def _framed(activity: Activity, id_: str, title: str, about: str, inside: Markup, scale: _Scale) -> Markup:
    """The plot with its axes, its gaps and its marks."""
    count = len(activity.buckets)
    gaps, until = [], 0
    for first, end in [*_runs(activity.series("")), (count, count)]:
        if first > until and not (first == count and first - until <= _FRESH_BUCKETS):
            gaps.append((until, first))
        until = end
    back = [
        Markup(
            '<rect class="gap" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>no numbers</title></rect>'
        ).format(_x(first, count), _TOP, _x(end, count) - _x(first, count), _BOTTOM - _TOP)
        for first, end in gaps
    ]
    for tick in scale.ticks:
        y, text = scale.y(tick), scale.text(tick)
        back.append(Markup('<path class="grid" d="M{} {:.1f}H{}"/>').format(_LEFT, y, _RIGHT))
        back.append(Markup('<text class="end" x="{}" y="{:.1f}">{}</text>').format(_LEFT - 5, y + 4, text))
    for at_us, text in _times(activity):
        x = _x((at_us - activity.since_us) / activity.window.span_us, count)
        back.append(Markup('<path class="grid" d="M{:.1f} {}v5"/>').format(x, _BOTTOM))
        back.append(Markup('<text class="middle" x="{:.1f}" y="{}">{}</text>').format(x, _HEIGHT - 8, text))
    front = []
    for at, bucket in enumerate(activity.buckets):
        for mark in (bucket or {}).get("mark", ()):
            x = _x(at, count)
            front.append(
                Markup(
                    '<g class="mark"><title>{} at {}</title><path d="M{:.1f} {}V{}"/>'
                    '<text x="{:.1f}" y="14">{}</text></g>'
                ).format(mark, _moment(activity, at), x, _TOP - 4, _BOTTOM, x, _MARKS.get(mark, "●"))
            )
    missing = f" Nobody counted in {len(gaps)} {'stretch' if len(gaps) == 1 else 'stretches'}." if gaps else ""
    note = f"{about} Times are UTC.{missing}"
    return Markup(
        '<svg class="plot" viewBox="0 0 {:g} {:g}" role="img" aria-labelledby="{id}-title {id}-about">'
        '<title id="{id}-title">{}</title><desc id="{id}-about">{}</desc>{}{}{}</svg>'
    ).format(
        *(_WIDTH, _HEIGHT, title, note, Markup("").join(back), inside, Markup("").join(front)), id=f"picture-{id_}"
    )


def _spark(line: Line, most: float = 0.0) -> Markup:
    """A small picture without axes, with the given scale or its own."""
    top = most or _greatest(line.values) or 1.0
    path = _steps(line.values, 0.0, _SMALL_WIDTH, lambda value: _SMALL_HEIGHT - 2 - value / top * (_SMALL_HEIGHT - 4))
    return Markup(
        '<svg class="spark" viewBox="0 0 {:g} {:g}" role="img"><title>{}</title>'
        '<path class="line line-1" d="{}"/></svg>'
    ).format(_SMALL_WIDTH, _SMALL_HEIGHT, line.name, path)


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

_STRIP_WIDTH, _STRIP_LEFT, _STRIP_RIGHT = 960, 96, 944
_ATTEMPTS, _DOUBTS, _EVENTS, _AXIS, _STRIP_HEIGHT = 24, 56, 88, 112, 136
_BAR: Final = 18
_BAR_MIN: Final = 3.0
# Below this no gap is shorter: two moments never are in one place.
_GAP_MIN: Final = 0.5
_ENDED_WELL: Final = frozenset((Event.COMPLETE, Event.RELEASE, Event.FORGET, Event.POSTPONE))
_HEAD: Final = Markup(
    '<svg class="strip" viewBox="0 0 {width} {height}" role="img" aria-labelledby="strip-title strip-text">'
    '<title id="strip-title">What happened, and when</title><desc id="strip-text">{text}</desc>'
    '<defs><pattern id="strip-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="6"/></pattern></defs>'
    '<line class="axis" x1="{left}" y1="{axis}" x2="{right}" y2="{axis}"/>'
)
_END: Final = Markup("</svg>")
_BAR_OF: Final = Markup(
    '<g class="{kind}"><title>{text}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}"/></g>'
)
_LABEL: Final = Markup('<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{text}</text>')
_PROBE: Final = Markup('<g class="probe"><title>{text}</title><circle cx="{x:.1f}" cy="{y}" r="6"/></g>')
_DECISION: Final = Markup(
    '<g class="decision"><title>{text}</title><rect x="-6" y="-6" width="12" height="12" '
    'transform="translate({x:.1f} {y}) rotate(45)"/></g>'
)
_LEGEND: Final = Markup(
    '<p class="hint">An attempt lasts from its claim to its end, and is filled if its end is known. Circles are probes,'
    " diamonds what was decided or came late. Numbers are those of the list; long waits are shortened.</p>"
)
_ROWS: Final = (("attempts", _ATTEMPTS), ("in doubt", _DOUBTS), ("events", _EVENTS))


class _Axis:
    """Where each of these moments is."""

    def __init__(self, moments: Iterable[int]) -> None:
        ordered = sorted(set(moments))
        places = [0.0]
        for before, after in pairwise(ordered):
            places.append(places[-1] + _GAP_MIN + log1p((after - before) / MICROSECONDS))
        scale = (_STRIP_RIGHT - _STRIP_LEFT) / (places[-1] or 1.0)
        self._x = {at_us: _STRIP_LEFT + place * scale for at_us, place in zip(ordered, places, strict=True)}

    def __getitem__(self, at_us: int) -> float:
        return self._x[at_us]


def strip(told: Told, now_us: int) -> Markup:
    """The strip; nothing where nothing happened. What is not over ends at `now_us`."""
    if not told.happenings:
        return Markup("")
    doubts = [(since_us, now_us if until_us is None else until_us) for since_us, until_us in told.doubts]
    moments = [each.at_us for each in told.happenings]
    moments += [_until(each, now_us) for each in told.happenings if each.event == ATTEMPT]
    moments += [at_us for doubt in doubts for at_us in doubt]
    axis = _Axis(moments)
    parts = [_HEAD.format(**_PLACES, text=_described(told.happenings, len(doubts)))]
    parts += [_LABEL.format(x=0, y=y + 4, anchor="start", text=name) for name, y in _ROWS]
    parts += [
        _bar("doubt", axis, since_us, until_us, _DOUBTS, f"in doubt from {moment(since_us)} to {moment(until_us)}")
        for since_us, until_us in doubts
    ]
    for number, each in enumerate(told.happenings, 1):
        text = f"{moment(each.at_us)} {each.text}"
        if each.event == ATTEMPT:
            kind = "attempt well" if each.ended in _ENDED_WELL else "attempt"
            parts.append(_bar(kind, axis, each.at_us, _until(each, now_us), _ATTEMPTS, text))
            parts.append(_LABEL.format(x=axis[each.at_us], y=_ATTEMPTS - _BAR / 2 - 3, anchor="start", text=number))
        else:
            shape = _PROBE if each.event == PROBE else _DECISION
            parts.append(shape.format(text=text, x=axis[each.at_us], y=_EVENTS))
    first_us, last_us = min(moments), max(moments)
    parts.append(_LABEL.format(x=_STRIP_LEFT, y=_AXIS + 18, anchor="start", text=moment(first_us)))
    parts.append(_LABEL.format(x=_STRIP_RIGHT, y=_AXIS + 18, anchor="end", text=moment(last_us)))
    return Markup("").join((*parts, _END, _LEGEND))


_PLACES: Final = {
    "width": _STRIP_WIDTH,
    "height": _STRIP_HEIGHT,
    "left": _STRIP_LEFT,
    "right": _STRIP_RIGHT,
    "axis": _AXIS,
}


def _until(happening: Happening, now_us: int) -> int:
    """A store's clock that was set back shows no time before the beginning."""
    return max(happening.at_us, now_us if happening.until_us is None else happening.until_us)


def _bar(kind: str, axis: _Axis, since_us: int, until_us: int, y: int, text: str) -> Markup:
    x = axis[since_us]
    width = max(_BAR_MIN, axis[max(since_us, until_us)] - x)
    return _BAR_OF.format(kind=kind, x=x, y=y - _BAR // 2, width=width, height=_BAR, text=text)


def _described(happenings: Iterable[Happening], doubts: int) -> str:
    events = [each.event for each in happenings]
    attempts, probes = events.count(ATTEMPT), events.count(PROBE)
    counted = {"attempts": attempts, "doubts": doubts, "probes": probes, "others": len(events) - attempts - probes}
    return f"{', '.join(f'{number} {name}' for name, number in counted.items())}; the list below tells each of them."
