"""What gateways did lately, as numbers for pictures: of short spans of time, from counters that exist anyway.

A sampler sets the counters of a process beside those of 30 seconds before. The difference is a bucket: `Numbers`, which
are added over processes and over time, except for what all of them measure alike, of which the greatest counts. So the
rows of all gateways of a store are read as one. A bucket without any row is a gap: nobody counted.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, Final, NoReturn
from uuid import UUID, uuid4

import orjson

from gateway.core.operation import MICROSECONDS, Event, microseconds
from gateway.observe.facts import METRICS
from gateway.observe.metrics import Counted
from gateway.store.base import StoreError
from gateway.store.operations import Activities, ActivityRow
from gateway.upkeep.duty import Sleep, repeat

BUCKET_US: Final = 30 * MICROSECONDS
MINUTE_US: Final = 60 * MICROSECONDS
LONGER_US: Final = 600 * MICROSECONDS
# The one that is not over, and the one before: what is open was asked for up to half a bucket ago.
_UNSURE_BUCKETS: Final = 2
# Of each kind. A bound on the bytes of a bucket, whatever the configuration has.
_NAMES_MAX: Final = 40
OTHERS: Final = ""
"""Stands for the routes, or the sinks, beyond those that are kept."""

Numbers = dict[str, dict[str, float]]
"""By what it is a number of, and by label; where there is none, the label is empty."""
Buckets = Mapping[tuple[UUID, int], Numbers]
"""By who counted, and since when (microseconds of its clock)."""

# What it is a number of, the metric, which of its labels is kept, how the others are combined, and the one label that
# counts alone. Opened is an attempt without a known outcome, and a lease that nobody held any more.
_KINDS: Final[Sequence[tuple[str, str, int | None, Callable[[Sequence[float]], float], str | None]]] = (
    ("verdict", "idempotency_requests_total", 1, sum, None),
    ("route", "idempotency_requests_total", 0, sum, None),
    ("accepted", "idempotency_accepted_total", None, sum, None),
    ("delivery", "idempotency_deliveries_total", 1, sum, None),
    ("opened", "idempotency_settlements_total", None, sum, Event.ABANDON),
    ("opened", "idempotency_swept_total", None, sum, Event.LAPSE),
    ("open", "idempotency_in_doubt", None, sum, None),
    ("oldest_doubt", "idempotency_oldest_in_doubt_seconds", None, max, None),
    ("waiting", "idempotency_backlog", None, sum, None),
    ("oldest_waiting", "idempotency_oldest_backlog_seconds", None, max, None),
    ("lag", "idempotency_oldest_event_seconds", 0, max, None),
)
# Of what all processes measure alike, the greatest number counts.
_GREATEST: Final = frozenset(("mark", "open", "oldest_doubt", "waiting", "oldest_waiting", "lag"))
_HISTOGRAMS: Final = {"gateway": "idempotency_overhead_seconds", "service": "idempotency_upstream_duration_seconds"}
METRICS_READ: Final = tuple({*(name for _, name, *_ in _KINDS), *_HISTOGRAMS.values()})
"""All metrics that pictures are made of."""


# -- a bucket ----------------------------------------------------------------------------------------------------------


def totals(counted: Counted) -> Numbers:
    """What a process has counted so far, over all series that pictures do not tell apart, and how its gauges stand."""
    found: Numbers = {}
    for kind, name, place, combine, only in _KINDS:
        values: dict[str, list[float]] = {}
        for labels, (number, *_) in counted.get(name, {}).items():
            if only is None or only in labels:
                values.setdefault("" if place is None else str(labels[place]), []).append(number)
        of = found.setdefault(kind, {})
        for label, each in values.items():
            of[label] = of.get(label, 0.0) + float(combine(each))
    for kind, name in _HISTOGRAMS.items():
        bounds = (*map(str, METRICS[name].bounds), "+Inf")
        # The last number of a row is the sum of the seconds.
        found[kind] = dict(zip(bounds, map(sum, zip(*counted.get(name, {}).values(), strict=True)), strict=False))
    return found


def difference(before: Numbers, now: Numbers) -> Numbers:
    """What was counted between these totals, and how the gauges stand."""
    found: Numbers = {}
    for kind, labels in now.items():
        was = {} if kind in _GREATEST else before.get(kind, {})
        grown = {label: number - was.get(label, 0.0) for label, number in labels.items()}
        if kind not in _GREATEST:
            grown = {label: number for label, number in grown.items() if number > 0}
        if grown:
            found[kind] = _bounded(kind, grown)
    return found


def _bounded(kind: str, labels: dict[str, float]) -> dict[str, float]:
    """Those with the `_NAMES_MAX` greatest numbers; the others are one."""
    ordered = sorted(labels.items(), key=lambda each: -each[1])
    bounded = {kind: dict(ordered[:_NAMES_MAX])}
    for _, number in ordered[_NAMES_MAX:]:
        merge(bounded, {kind: {OTHERS: number}})
    return bounded[kind]


def merge(into: Numbers, more: Numbers) -> None:
    """Take these numbers in, of another process or of another time."""
    for kind, labels in more.items():
        own, is_greatest = into.setdefault(kind, {}), kind in _GREATEST
        for label, number in labels.items():
            before = own.get(label, 0.0)
            own[label] = max(before, number) if is_greatest else before + number


def encoded(parts: Iterable[tuple[int, Numbers]]) -> bytes:
    """Buckets, each with how many microseconds it begins after the row."""
    return orjson.dumps(list(parts))


def decoded(body: bytes) -> list[tuple[int, Numbers]]:
    """Undo `encoded`. What another program wrote in another way is left out."""
    try:
        parts: Any = orjson.loads(body)
        return [
            (int(after_us), {kind: {label: float(each) for label, each in of.items()} for kind, of in numbers.items()})
            for after_us, numbers in parts
        ]
    except (ValueError, TypeError, AttributeError):
        return []


# -- a window ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """What a picture covers: so much time in buckets of `span_us`, which rows of `row_us` have."""

    name: str
    span_us: int
    length_us: int
    row_us: int


HOUR: Final = Window("hour", BUCKET_US, 3_600 * MICROSECONDS, MINUTE_US)
WEEK: Final = Window("week", LONGER_US, 7 * 86_400 * MICROSECONDS, LONGER_US)
WINDOWS: Final = {each.name: each for each in (HOUR, WEEK)}


@dataclass(frozen=True, slots=True)
class Activity:
    """A window, from `since_us` on. A bucket is None where nobody counted. `why_own` says why these are the numbers of
    one process alone; empty if they are those of all."""

    window: Window
    since_us: int
    buckets: Sequence[Numbers | None]
    why_own: str = ""

    def total(self, kind: str) -> dict[str, float]:
        """What was counted of this kind, by its label; empty where it has none."""
        found: Numbers = {}
        for bucket in self.buckets:
            merge(found, {kind: (bucket or {}).get(kind, {})})
        return found.get(kind, {})

    def series(self, kind: str, labels: Collection[str] | None = None) -> list[float | None]:
        """The numbers of this kind, bucket by bucket, of these labels or of all."""
        return [None if bucket is None else _sum(bucket, kind, labels) for bucket in self.buckets]

    def quantiles(self, kind: str, share: float) -> list[float | None]:
        """Below how many seconds this share of what the histogram counted is; None where it counted nothing."""
        return [None if bucket is None else _quantile(bucket, kind, share) for bucket in self.buckets]

    def resolved(self) -> list[float | None]:
        """How many doubts ended, whoever resolved them: those that were opened and are not open any more. What is open
        is counted some seconds later than what is opened. So an end counts once all that follows agrees, and is not
        known yet in the last two buckets."""
        opened, still = self.series("opened"), self.series("open")
        places = [at for at, number in enumerate(still) if number is not None]
        if not places:
            return [None] * len(still)
        first = places[0]
        ended = list(accumulate((opened[at] or 0.0) if at != first else 0.0 for at in places))
        ended = [all_ - (still[at] or 0.0) + (still[first] or 0.0) for all_, at in zip(ended, places, strict=True)]
        sure = list(accumulate(reversed(ended), min))[::-1]
        found: list[float | None] = [None] * len(still)
        found[first] = 0.0
        for (one, other), at in list(zip(pairwise(sure), places[1:], strict=True))[:-_UNSURE_BUCKETS]:
            found[at] = max(0.0, other) - max(0.0, one)
        return found

    def coarser(self, number: int) -> Activity:
        """In so many parts, each of several buckets; one in which nobody counted at all is a gap."""
        size = -(-len(self.buckets) // number)
        parts = list[Numbers | None]()
        for at in range(0, len(self.buckets), size):
            counted = [each for each in self.buckets[at : at + size] if each is not None]
            part: Numbers = {}
            for bucket in counted:
                merge(part, bucket)
            parts.append(part if counted else None)
        window = replace(self.window, span_us=self.window.span_us * size)
        return Activity(window, self.since_us, parts, self.why_own)

    def document(self) -> dict[str, Any]:
        return {
            "window": self.window.name,
            "span_seconds": self.window.span_us // MICROSECONDS,
            "is_whole": not self.why_own,
            "why": self.why_own or None,
            "buckets": [
                _document(self.since_us + at * self.window.span_us, bucket) for at, bucket in enumerate(self.buckets)
            ],
        }


def gathered(window: Window, now_us: int, own: Buckets, rows: Iterable[tuple[UUID, int, bytes]], why: str) -> Activity:
    """The window up to now, of what a process remembers itself and the rows of all, with who wrote each and when."""
    found: dict[tuple[UUID, int], Numbers] = {}
    for writer, at_us, body in rows:
        for after_us, numbers in decoded(body):
            found[writer, at_us + after_us] = numbers
    count = window.length_us // window.span_us
    since_us = (now_us // window.span_us + 1 - count) * window.span_us
    if window.row_us == MINUTE_US or why:
        found |= own
    buckets: list[Numbers | None] = [None] * count
    for (_, at_us), numbers in found.items():
        place = (at_us - since_us) // window.span_us
        if 0 <= place < count:
            bucket = buckets[place] = buckets[place] or {}
            merge(bucket, numbers)
    return Activity(window, since_us, buckets, why)


def _sum(bucket: Numbers, kind: str, labels: Collection[str] | None) -> float:
    found = bucket.get(kind, {})
    return sum(found.values() if labels is None else (found.get(label, 0.0) for label in labels))


def _quantile(bucket: Numbers, kind: str, share: float) -> float | None:
    """Between two bounds as if what lies there were spread evenly, as PromQL has it."""
    found = bucket.get(kind, {}).items()
    # A row may have any label.
    counts = sorted((float(bound), n) for bound, n in found if bound == "+Inf" or bound.replace(".", "", 1).isdecimal())
    sums = list(accumulate(number for _, number in counts))
    if not sums:
        return None
    wanted = share * sums[-1]
    place = min(next(at for at, total in enumerate(sums) if total >= wanted), len(sums) - 1)
    bounds = [float(bound) for bound in METRICS[_HISTOGRAMS[kind]].bounds]
    upper = counts[place][0]
    if upper > bounds[-1]:
        return bounds[-1]
    at = bisect_right(bounds, upper) - 1
    lower = bounds[at - 1] if at > 0 else 0.0
    return lower + (upper - lower) * (wanted - (sums[place] - counts[place][1])) / counts[place][1]


def _document(at_us: int, bucket: Numbers | None) -> dict[str, Any]:
    at = {"at_seconds": at_us // MICROSECONDS}
    if bucket is None:
        return {**at, "is_gap": True}
    labelled: dict[str, Any] = {**bucket, **{kind: of[""] for kind, of in bucket.items() if of.keys() == {""}}}
    return {**at, "is_gap": False, **labelled}


# -- a process ---------------------------------------------------------------------------------------------------------
# Samples what this process counts, every 30 seconds, and has the durable store keep it, once a minute.
#
# Nothing of it is on a request's way: the counters exist anyway. Each process of a gateway has rows of its own, and
# readers add them; one of several workers writes those of all in one statement. Of the last hour a process remembers
# its own numbers, for when the store cannot be asked. What the store did not take is tried again; what a killed process
# has not saved, at most a minute, is lost.
#
# A process whose clock was set back goes on as another writer, so that nothing that it wrote is overwritten.

# Those of an hour, and of the ten minutes that it begins in.
_BUCKETS_MAX: Final = (HOUR.length_us + LONGER_US) // BUCKET_US
_UNSAVED_MAX: Final = HOUR.length_us // MINUTE_US
SAVE_SECONDS: Final = 10.0
# A stop waits no longer for a store that is slow or down.
_LAST_SECONDS: Final = 1.0

Rows = tuple[ActivityRow, ...]
Save = Callable[[str, Rows], Awaitable[bool | None]]
"""Has rows of a service written; the result is whether they are."""


@dataclass(eq=False, slots=True)
class ActivitySampler:
    """Samples what `take` returns. Pictures mark when it began, and when another one followed: a reload. It may have a
    supervisor `save`, but not what is left when it stops: that may be stopping too."""

    take: Callable[[], Counted]
    store: Activities
    service: str
    _: KW_ONLY
    ask_to_save: Save | None = None
    wall_seconds: Callable[[], float] = time.time
    sleep: Sleep = asyncio.sleep
    # What is written later is newer.
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _is_over: bool = field(default=False, init=False)
    _writer: UUID = field(default_factory=uuid4, init=False)
    _marks: list[str] = field(default_factory=lambda: ["start"], init=False)
    _counted: Numbers = field(default_factory=dict, init=False)
    _buckets: dict[tuple[UUID, int], Numbers] = field(default_factory=dict, init=False)
    # The minutes that the store has yet to take.
    _unsaved: dict[tuple[UUID, int], None] = field(default_factory=dict, init=False)
    _last_us: int = field(default=0, init=False)

    def remembered(self) -> Buckets:
        """What this process counted in the last hour, up to now."""
        if not self._is_over:
            self.sample(self._bucket_us())
        return {key: {kind: dict(each) for kind, each in of.items()} for key, of in self._buckets.items()}

    def follow(self, before: ActivitySampler) -> None:
        """Go on in the place of the sampler of the gateway before, whose counts go on in what this one takes."""
        before._is_over = True
        self._writer, self._counted, self._last_us = before._writer, before._counted, before._last_us
        self._buckets, self._unsaved, self._marks = before._buckets, before._unsaved, [*before._marks, "reload"]
        self._saving = before._saving

    async def run(self) -> NoReturn:
        await repeat(self._pass, pause_seconds=1.0, at_once=True, sleep=self.sleep)

    async def _pass(self) -> float:
        # At the same moments in all processes.
        span_seconds = BUCKET_US / MICROSECONDS
        await self.sleep(span_seconds - self.wall_seconds() % span_seconds)
        if not self._is_over:
            # A timer may be early by a little.
            self.sample(round(self.wall_seconds() / span_seconds) * BUCKET_US - BUCKET_US)
            async with self._saving:
                await self.save()
        return 0.0

    def sample(self, at_us: int) -> None:
        """Count what happened since the last sample for the bucket that begins then."""
        if at_us < self._last_us - BUCKET_US:
            self._writer, self._last_us = uuid4(), 0
            self._marks.append("clock set back")
        # A sample in between may have begun the next one.
        at_us = max(at_us, self._last_us)
        now = totals(self.take())
        numbers = difference(self._counted, now)
        numbers["mark"] = dict.fromkeys(self._marks, 1.0)
        self._counted, self._last_us, self._marks = now, at_us, []
        merge(self._buckets.setdefault((self._writer, at_us), {}), numbers)
        self._unsaved[self._writer, at_us - at_us % MINUTE_US] = None
        for kept, keys_max in ((self._buckets, _BUCKETS_MAX), (self._unsaved, _UNSAVED_MAX)):
            for key in list(kept)[:-keys_max]:
                del kept[key]

    async def save(self, *, is_last: bool = False) -> None:
        """Have the store keep the earliest minute that it lacks and that is over; with `is_last`, all that it lacks.
        Where it cannot, the minute is tried again, and pictures have a mark."""
        now_us = microseconds(self.wall_seconds())
        for writer, minute_us in list(self._unsaved):
            # The times of another writer are of another clock.
            if not is_last and writer == self._writer and now_us < minute_us + MINUTE_US - BUCKET_US // 2:
                continue
            rows = self._row(writer, HOUR, minute_us), self._row(writer, WEEK, minute_us - minute_us % LONGER_US)
            if not await self._is_saved(rows, is_last=is_last):
                self._buckets[self._writer, self._last_us]["mark"]["store away"] = 1.0
                return
            self._unsaved.pop((writer, minute_us), None)
            if not is_last:
                return

    async def write(self, service: str, rows: Rows, until_seconds: float) -> bool:
        """Write rows of any process until then, on the monotonic clock; whether that was done. Later they could undo
        what another process writes in the place of this one."""
        with suppress(StoreError, TimeoutError):
            if (left_seconds := until_seconds - time.monotonic()) > 0:
                async with asyncio.timeout(left_seconds):
                    await self.store.save_activity(service, *rows)
                    return True
        return False

    async def close(self) -> None:
        """Sample and save what is left, for a bounded time, unless another one has followed."""
        if self._is_over:
            return
        self._is_over = True
        self.sample(self._bucket_us())
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS), self._saving:
                await self.save(is_last=True)

    async def _is_saved(self, rows: Rows, *, is_last: bool) -> bool:
        if is_last or self.ask_to_save is None:
            return await self.write(self.service, rows, time.monotonic() + SAVE_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(SAVE_SECONDS):
                return bool(await self.ask_to_save(self.service, rows))
        return False

    def _bucket_us(self) -> int:
        return microseconds(self.wall_seconds()) // BUCKET_US * BUCKET_US

    def _row(self, writer: UUID, window: Window, at_us: int) -> ActivityRow:
        own = [(at, each) for (by, at), each in self._buckets.items() if by == writer]
        parts = [(at, each) for at, each in own if at_us <= at < at_us + window.row_us]
        if window.span_us == window.row_us:
            whole: Numbers = {}
            for _, numbers in parts:
                merge(whole, numbers)
            parts = [(at_us, whole)]
        body = encoded((at - at_us, numbers) for at, numbers in parts)
        return ActivityRow(writer, window.row_us, at_us, at_us + window.length_us + HOUR.length_us, body)
