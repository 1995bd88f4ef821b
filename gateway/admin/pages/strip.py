"""The history of an operation as a picture: a strip on a time axis.

Pure: what happened in, SVG out. All that it says, the list below it says in words.

Attempts take milliseconds and doubts days. So the longer a gap between two moments is, the more it is shortened: the
order is exact, and lengths are for comparison alone. States differ by place and form, and not by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import log1p
from typing import Final

from markupsafe import Markup

from gateway.admin.history import ATTEMPT, Happening, Told
from gateway.admin.view import moment
from gateway.core.history import PROBE
from gateway.core.operation import MICROSECONDS, Event

_WIDTH, _LEFT, _RIGHT = 960, 96, 944
_ATTEMPTS, _DOUBTS, _MARKS, _AXIS, _HEIGHT = 24, 56, 88, 112, 136
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
_ROWS: Final = (("attempts", _ATTEMPTS), ("in doubt", _DOUBTS), ("events", _MARKS))


class _Axis:
    """Where each of these moments is."""

    def __init__(self, moments: Iterable[int]) -> None:
        ordered = sorted(set(moments))
        places = [0.0]
        for before, after in pairwise(ordered):
            places.append(places[-1] + _GAP_MIN + log1p((after - before) / MICROSECONDS))
        scale = (_RIGHT - _LEFT) / (places[-1] or 1.0)
        self._x = {at_us: _LEFT + place * scale for at_us, place in zip(ordered, places, strict=True)}

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
            parts.append(shape.format(text=text, x=axis[each.at_us], y=_MARKS))
    first_us, last_us = min(moments), max(moments)
    parts.append(_LABEL.format(x=_LEFT, y=_AXIS + 18, anchor="start", text=moment(first_us)))
    parts.append(_LABEL.format(x=_RIGHT, y=_AXIS + 18, anchor="end", text=moment(last_us)))
    return Markup("").join((*parts, _END, _LEGEND))


_PLACES: Final = {"width": _WIDTH, "height": _HEIGHT, "left": _LEFT, "right": _RIGHT, "axis": _AXIS}


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
