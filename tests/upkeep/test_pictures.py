"""Numbers of short spans of time: what they are taken from, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from uuid import uuid4

import pytest

from gateway.core.verdict import Verdict
from gateway.observe.facts import (
    BacklogTaken,
    Events,
    EventsCounted,
    RequestAnswered,
    SweepDone,
    TallyTaken,
)
from gateway.observe.metrics import Metrics
from gateway.store.operations import RouteBacklog, SinkBacklog
from gateway.upkeep.activity import (
    BUCKET_US,
    HOUR,
    METRICS_READ,
    Activity,
    Numbers,
    difference,
    encoded,
    gathered,
    merge,
    totals,
)

NOW_US = 1_800_000_000_000_000


def of(numbers: Mapping[tuple[str, ...], float]) -> Numbers:
    """Numbers by their kinds and labels, those of a kind without labels by the kind alone."""
    found: Numbers = {}
    for (kind, *labels), number in numbers.items():
        found.setdefault(kind, {})["".join(labels)] = number
    return found


def hour(*buckets: Numbers | None) -> Activity:
    return Activity(HOUR, 0, buckets)


def test_what_the_counters_of_a_process_become() -> None:
    """By verdict, by route, the times of gateway and service, what became doubtful, and what the tallies say."""
    metrics = Metrics(["charge", "refund"], has_fast_tier=False, version="1", sinks=["lines"])
    events = Events(metrics, count=metrics.counting)
    for route, verdict in (("charge", Verdict.STORED), ("charge", Verdict.REPLAYED), ("refund", Verdict.STORED)):
        upstream = 0.2 if verdict is Verdict.STORED else None
        events.publish(RequestAnswered(route, verdict, 201, 0.203, "POST", upstream_seconds=upstream))
    events.publish(SweepDone(2, 0, 0, 0.1))
    events.publish(TallyTaken((("charge", 3), ("refund", 1)), 70.0))
    events.publish(BacklogTaken(dict.fromkeys(("charge", "refund"), RouteBacklog(4, 100, 5.0)), (), 0))
    events.publish(EventsCounted({"lines": SinkBacklog(9, 12.0)}))
    first = totals(metrics.take(METRICS_READ))
    numbers = difference({}, first)
    assert {kind: numbers[kind] for kind in numbers if kind not in ("gateway", "service")} == of(
        {
            ("verdict", "stored"): 2.0,
            ("verdict", "replayed"): 1.0,
            ("route", "charge"): 2.0,
            ("route", "refund"): 1.0,
            ("opened",): 2.0,
            ("open",): 4.0,
            ("oldest_doubt",): 70.0,
            ("waiting",): 8.0,
            ("oldest_waiting",): 5.0,
            ("lag", "lines"): 12.0,
        }
    )
    assert sum(numbers["gateway"].values()) == 2.0
    again = difference(first, totals(metrics.take(METRICS_READ)))
    assert set(again) == {"open", "oldest_doubt", "waiting", "oldest_waiting", "lag"}


def test_what_is_counted_is_added_and_what_is_measured_is_not() -> None:
    """Two gateways that see the same four doubts see four. A counter that began anew counts nothing backwards."""
    both: Numbers = {}
    for stored in (2.0, 3.0):
        merge(both, of({("verdict", "stored"): stored, ("open",): 4.0}))
    assert both == of({("verdict", "stored"): 5.0, ("open",): 4.0})
    assert difference({"verdict": {"stored": 9.0}}, {"verdict": {"stored": 1.0}}) == {}


@pytest.mark.parametrize("body", [b"", b"{}x", b"[1]", b'[[0,"x"]]', b'[["a",[]]]', b"[[0,[[1,2,[]]]]]", b"null"])
def test_what_another_program_wrote_is_left_out(body: bytes) -> None:
    """It spoils nothing else."""
    writer, at_us = uuid4(), NOW_US - 5 * HOUR.row_us
    rows = [(uuid4(), at_us, body), (writer, at_us, encoded([(0, of({("verdict", "stored"): 1.0}))]))]
    assert gathered(HOUR, NOW_US, {}, rows, "").total("verdict") == {"stored": 1.0}


def test_what_is_outside_of_the_window() -> None:
    """Older numbers, and those of a clock that runs ahead, are not shown."""
    rows = [
        (uuid4(), at_us, encoded([(0, of({("verdict", "stored"): 1.0}))]))
        for at_us in (NOW_US - 2 * HOUR.length_us, NOW_US + HOUR.length_us, -(2**62))
    ]
    found = gathered(HOUR, NOW_US, {}, rows, "")
    assert found.total("verdict") == {}
    assert set(found.buckets) == {None}
    assert len(found.buckets) == 120


def test_who_resolved_a_doubt_does_not_matter() -> None:
    """What was opened and is open no more has been resolved, also where the tally comes later than the doubt: so of
    the last two spans nothing is said yet."""
    opened = (0, 3, 0, 0, 0, 1, 0)
    still = (0, 0, 3, 1, 1, 1, 0)
    pairs = zip(opened, still, strict=True)
    found = hour(*(of({("opened",): float(one), ("open",): float(two)}) for one, two in pairs))
    assert found.resolved() == [0, 0, 0, 2, 0, None, None]
    assert hour(None, None).resolved() == [None, None]


def test_quantiles_are_those_of_the_histogram() -> None:
    """Within a bucket of the histogram as if what lies there were spread evenly; above the last bound that bound."""
    found = hour(of({("service", "0.1"): 50.0, ("service", "0.25"): 50.0}), of({("service", "+Inf"): 1.0}), {}, None)
    assert found.quantiles("service", 0.5) == [pytest.approx(0.1), 300.0, None, None]
    assert found.quantiles("service", 0.75)[0] == pytest.approx(0.175)
    assert found.quantiles("service", 0.25)[0] == pytest.approx(0.075)


def test_a_window_in_fewer_parts() -> None:
    """A part is a gap where all of it is one."""
    numbers = count(1)
    found = hour(*(None if at < 10 else of({("verdict", "stored"): float(next(numbers))}) for at in range(120)))
    coarse = found.coarser(12)
    assert coarse.series("verdict")[:2] == [None, float(sum(range(1, 11)))]
    assert coarse.window.span_us == 10 * BUCKET_US
    assert found.document()["buckets"][0]["is_gap"]
