"""Facts become numbers under the names that dashboards and alerts rely on."""

from __future__ import annotations

import os
import re
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from gateway.core.operation import Event, RequestInfo
from gateway.core.verdict import Verdict
from gateway.observe import facts
from gateway.observe.metrics import Counted, Metrics
from gateway.observe.status import Health
from gateway.store.operations import RouteBacklog
from tests.observe.scrape import publish, scrape

OPERATION = UUID(int=7)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(["create_payment", "create_order"], has_fast_tier=True, version="1.2.3")


def answered(**known: Any) -> facts.RequestAnswered:
    return facts.RequestAnswered("create_payment", Verdict.STORED, 201, 0.25, "POST", OPERATION, 201, **known)


PAY, ORDER = "create_payment", "create_order"
OF = (ORDER, OPERATION, 5)
LATE = facts.OperationSettled(*OF, Event.COMPLETE, "answered 200", 0.5, is_late=True)
RELEASED = facts.OperationSettled(*OF, Event.RELEASE, "refused: nobody listens", None, is_late=False)
WAITING = RouteBacklog(2, 900, 60.0, {"deadline": 1, "unauthorized": 3}, 5, 70.0)
PASSED = "unprotected_duration_seconds~0.1"
# A fact, and by how much it changes which numbers: name, and values of labels in the order of the labels' names. What
# is behind ~ is measured: it adds 1 to a count, and that to a sum.
CHANGES: dict[str, tuple[facts.Fact, str]] = {
    "answered-by-the-upstream": (
        answered(upstream_seconds=0.2),
        "requests_total,PAY,stored=1 responses_total,PAY,2xx=1 request_duration_seconds,executed,PAY~0.25 "
        "overhead_seconds,PAY~0.05",
    ),
    "unkeyed": (
        facts.RequestPassed(Verdict.UNKEYED, "POST", 200, 0.1, route=ORDER),
        f"unprotected_requests_total,unkeyed=1 {PASSED} requests_total,ORDER,unkeyed=1",
    ),
    "store-unavailable-forwarded": (
        facts.RequestPassed(Verdict.UNPROTECTED, "POST", 200, 0.1, route=ORDER),
        f"unprotected_requests_total,store_unavailable=1 {PASSED} requests_total,ORDER,unprotected=1",
    ),
    "completed-late": (
        LATE,
        "settlements_total,complete,ORDER=1 late_writes_total,ORDER=1 upstream_duration_seconds,ORDER~0.5",
    ),
    "released-without-the-upstream": (RELEASED, "settlements_total,release,ORDER=1"),
    "store-call-failed": (
        facts.StoreCalled("durable", "claim", 0.002, "Indefinite"),
        "store_duration_seconds,durable,claim~0.002 store_errors_total,Indefinite,durable,claim=1",
    ),
    "store-met": (facts.StoreMet(3), "store_timeline=3"),
    "synchronous": (facts.SynchronyChanged(True), "store_synchronous=1"),
    "unvouched": (facts.PromotionJudged(2, "waiting", "gateway g", 2), "store_unvouched_gateways=2"),
    "promotion": (facts.PromotionJudged(2, "accepted", "all 2 gateways", 0), "store_promotions_total,accepted=1"),
    "swept": (
        facts.SweepDone(1, 2, 3, 0.5, expired=4),
        "swept_total,expire=4 swept_total,lapse=1 swept_total,retire=2 swept_total,collect=3 "
        "sweep_duration_seconds~0.5",
    ),
    "tally": (
        facts.TallyTaken(((ORDER, 3), ("renamed", 1)), 90.0),
        "in_doubt,ORDER=3 in_doubt,renamed=1 oldest_in_doubt_seconds=90",
    ),
    "webhook-changed": (
        facts.WebhookRepeated(PAY, OPERATION, is_changed=True),
        "inbox_duplicates_total,PAY=1 inbox_changed_total,PAY=1",
    ),
    "backlog": (
        facts.BacklogTaken({ORDER: WAITING}, (PAY,), orphans=4),
        "backlog,ORDER=2 backlog_bytes,ORDER=900 oldest_backlog_seconds,ORDER=60 dead_letters,deadline,ORDER=1 "
        "dead_letters,unauthorized,ORDER=3 lanes_stopped,ORDER=5 oldest_stopped_lane_seconds,ORDER=70 paused,PAY=1 "
        "orphans=4",
    ),
    "loop-stalled": (facts.LoopStalled(12.0), "loop_stall_seconds~12"),
}


@pytest.mark.parametrize(("fact", "changes"), CHANGES.values(), ids=CHANGES)
async def test_a_fact_changes_its_numbers_and_no_others(metrics: Metrics, fact: facts.Fact, changes: str) -> None:
    before = await scrape(metrics)
    publish(metrics, fact)
    measured = re.sub(r"([a-z_]+)((?:,\S+?)?)~(\S+)", r"\1_count\2=1 \1_sum\2=\3", changes)
    rows = (change.replace("PAY", PAY).replace("ORDER", ORDER).rpartition("=") for change in measured.split())
    expected = {tuple(f"idempotency_{series}".split(",")): float(number) for series, _, number in rows}
    assert (await scrape(metrics)).changed_since(before) == expected


async def test_every_verdict_of_every_route_is_there_from_the_start(metrics: Metrics) -> None:
    """A rate needs a zero to rise from, so no series of a route waits for its first event. Without a fast tier there is
    no series that an alert would take for one that is down."""
    fresh = await scrape(metrics)
    for route in (PAY, ORDER):
        for verdict in Verdict:
            assert fresh.value("idempotency_requests_total", route=route, verdict=verdict) == 0
        assert fresh.value("idempotency_in_doubt", route=route) == 0
        assert fresh.value("idempotency_request_duration_seconds_count", route=route, kind="waited") == 0
    for of, tiers in ((metrics, {"durable", "fast"}), (Metrics([], has_fast_tier=False, version="1"), {"durable"})):
        now = await scrape(of)
        assert {each.labels["tier"] for each in now.named("idempotency_store_up")} == tiers


async def test_what_a_tally_has_no_more_goes_back_to_zero(metrics: Metrics) -> None:
    """A tally replaces the one before it, also for routes that the configuration does not have, and for keys: then an
    operator may take one out of the configuration."""
    publish(metrics, facts.TallyTaken(((ORDER, 3), ("renamed", 1)), 90.0, (("new", 1), ("old", 2))))
    publish(metrics, facts.TallyTaken(((PAY, 1),), 5.0, (("new", 3),)))
    now = await scrape(metrics)
    in_doubt = {each.labels["route"]: each.value for each in now.named("idempotency_in_doubt")}
    assert in_doubt == {PAY: 1, ORDER: 0, "renamed": 0}
    assert now.value("idempotency_oldest_in_doubt_seconds") == 5
    for key_id, value in (("new", 3), ("old", 0)):
        assert now.value("idempotency_encrypted_operations", key_id=key_id) == value
    # What was delivered, requeued or resumed raises no alarm.
    publish(metrics, facts.BacklogTaken({ORDER: WAITING}, (ORDER,), 1))
    publish(metrics, facts.BacklogTaken({}, (), 0))
    assert (await scrape(metrics)).changed_since(now) == {}


async def test_a_duration_counts_in_every_bucket_from_its_own_upwards(metrics: Metrics) -> None:
    """Buckets are cumulative and their bounds belong to them."""
    for seconds in (0.0001, 0.5, 0.500001, 4000.0):
        publish(metrics, facts.RequestAnswered(ORDER, Verdict.STORED, 200, seconds, "POST"))
    now = await scrape(metrics)
    counts = {"0.00025": 1, "0.25": 1, "0.5": 2, "1.0": 3, "300.0": 3, "+Inf": 4}
    name, of = "idempotency_request_duration_seconds_bucket", {"route": ORDER, "kind": "executed"}
    assert {le: now.value(name, **of, le=le) for le in counts} == counts


async def test_callers_cannot_make_series(metrics: Metrics) -> None:
    """However requests vary, the number of series stays the same."""
    before = await scrape(metrics)
    for number in range(50):
        method = f"M{number}"
        known = (uuid4(), 200, 1, method, method)
        publish(metrics, facts.RequestAnswered(ORDER, Verdict.STORED, 200 + number, 0.1, method, *known))
        publish(metrics, facts.RequestPassed(None, method, 200 + number, 0.1, f"X-Key-{number}", f"/secret/{number}"))
    after = await scrape(metrics)
    names = [[(series.name, series.labels) for series in each.series] for each in (before, after)]
    assert names[0] == names[1]


async def test_what_is_read_at_a_scrape_is_read_anew_each_time(metrics: Metrics) -> None:
    """Gauges of the moment are those of the moment of the scrape. Nothing is global: another gateway in this process
    counts for itself."""
    exchanges = {("http://x", "answered"): 5, ("http://y", "lost"): 6}
    readings = iter([{"in_flight": {ORDER: 3}, "upstream_exchanges_total": exchanges}, {"journal_waiting": 4}])
    before = await scrape(metrics)
    metrics.read_with(lambda: next(readings))
    first, second = await scrape(metrics), await scrape(metrics)
    assert first.changed_since(before) == {
        ("idempotency_in_flight", ORDER): 3,
        ("idempotency_upstream_exchanges_total", "answered", "http://x"): 5,
        ("idempotency_upstream_exchanges_total", "lost", "http://y"): 6,
    }
    assert second.value("idempotency_in_flight", route=ORDER) == 0
    assert second.value("idempotency_journal_waiting") == 4
    other = await scrape(Metrics([PAY], has_fast_tier=False, version="2"))
    assert other.total("idempotency_journal_waiting") == 0
    assert [each.labels["version"] for each in other.named("idempotency_build_info")] == ["2"]


def number(text: str, sample: str) -> float:
    (found,) = [line for line in text.splitlines() if line.startswith(f"{sample} ")]
    return float(found.rpartition(" ")[2])


OF_WORKERS = {
    'claims_total{route="create_order"}': 105,
    'in_flight{route="create_order"}': 5,
    "oldest_in_flight_seconds": 3,
    'store_up{tier="durable"}': 1,
    'store_up{tier="fast"}': 0,
    'in_doubt{route="create_order"}': 3,
    'in_doubt{route="of_old"}': 3,
    'backlog{route="create_order"}': 3,
    'breaker_open{upstream="http://x"}': 1,
    "store_amnesia": 1,
    "journal_waiting": 5,
    "journal_oldest_seconds": 3,
    'upstream_connections{upstream="http://x"}': 5,
    'upstream_exchanges_total{result="lost",upstream="http://x"}': 105,
    'workers{state="serving"}': 2,
    "worker_restarts_total": 1,
    "log_lines_dropped_total": 112,
    'request_duration_seconds_bucket{kind="executed",le="0.25",route="create_payment"}': 105,
    'request_duration_seconds_count{kind="executed",route="create_payment"}': 105,
    'request_duration_seconds_sum{kind="executed",route="create_payment"}': 26.25,
}


async def test_workers_are_one_gateway(metrics: Metrics) -> None:
    """What only grows is added up, that of a dead worker included; each gauge has its rule."""

    def numbers(count: int, up: bool) -> Counted:
        worker = Metrics([PAY, ORDER], has_fast_tier=True, version="1.2.3")
        alike = ("oldest_in_flight_seconds", "journal_waiting", "journal_oldest_seconds", "log_lines_dropped_total")
        readings = dict.fromkeys(alike, count) | {
            "store_up": {"durable": True, "fast": up},
            "in_flight": {ORDER: count},
            "upstream_connections": {"http://x": count},
            "upstream_exchanges_total": {("http://x", "lost"): count},
        }
        worker.read_with(lambda: readings)
        for _ in range(count):
            publish(worker, facts.OperationClaimed(ORDER, OPERATION, 1, 1))
            publish(worker, answered())
        publish(worker, facts.MemoryChanged(not up, 1.0, "", ""))
        publish(worker, facts.TallyTaken(((ORDER, count), *([] if up else [("of_old", count)])), count))
        publish(worker, facts.BacklogTaken({ORDER: RouteBacklog(count, 1, 1.0)}, (), 0))
        publish(worker, facts.BreakerChanged("http://x", not up))
        return worker.take()

    metrics.absorb(numbers(60, up=False))
    metrics.absorb(numbers(40, up=False))
    metrics.count_workers(serving=2, silent=0, absent=0)
    metrics.count_restart()
    metrics.read_with(lambda: {"log_lines_dropped_total": 7})
    living = [numbers(2, up=True), numbers(3, up=False)]
    for _ in range(2):
        text = (await metrics.render("text/plain", lambda: (living, [])))[0].decode()
        assert {sample: number(text, f"idempotency_{sample}") for sample in OF_WORKERS} == OF_WORKERS


async def test_a_gateway_goes_on_from_the_one_before() -> None:
    """What that one has counted and still works on is counted, and how things stood with it is not shown any more."""
    before, metrics = (Metrics(["charge"], has_fast_tier=False, version="1") for _ in range(2))
    before.read_with(lambda: {"in_flight": {"charge": 2}, "upstream_connections_died_on_reuse_total": {"http://s": 3}})
    metrics.read_with(lambda: {"in_flight": {"charge": 1}, "upstream_connections_died_on_reuse_total": {"http://s": 1}})
    publish(before, facts.BreakerChanged("http://s", is_open=True))
    answered = facts.RequestAnswered("charge", Verdict.STORED, 200, 0.1, "POST")
    publish(before, answered)
    metrics.follow(before)
    publish(metrics, answered)

    async def shown() -> dict[str, float]:
        samples = await scrape(metrics)
        counted = samples.value("idempotency_requests_total", route="charge", verdict="stored")
        died = samples.value("idempotency_upstream_connections_died_on_reuse_total", upstream="http://s")
        in_flight = samples.value("idempotency_in_flight", route="charge")
        assert "idempotency_breaker_open" not in {each.name for each in samples.series}
        taken = metrics.take()
        assert taken["idempotency_in_flight"][("charge",)] == [in_flight]
        assert metrics.requests["charge"]["stored"] == counted
        return {"counted": counted, "died": died, "in flight": in_flight}

    assert await shown() == {"counted": 2, "died": 4, "in flight": 3}
    metrics.ended(before)
    assert await shown() == {"counted": 2, "died": 4, "in flight": 1}


async def test_a_store_that_grants_nothing_is_down() -> None:
    """For new keys it is, however well it can be reached."""
    metrics, health = Metrics([], has_fast_tier=True, version="1"), Health(fast_up=False)
    metrics.read_with(lambda: {"store_up": health.stores_up})
    for fact, up in (
        (facts.TierChanged("durable", up=True), 1),
        (facts.GrantsChanged("it waits"), 0),
        (facts.GrantsChanged(), 1),
    ):
        health(fact)
        text = (await metrics.render("text/plain"))[0].decode()
        assert number(text, 'idempotency_store_up{tier="durable"}') == up
        assert number(text, 'idempotency_store_up{tier="fast"}') == 0


async def test_a_gauge_is_there_while_it_is_0_in_every_worker() -> None:
    """A series that comes and goes is a gap to whoever alerts on it; its labels are known from workers alone. A store
    is down where one worker has nothing to report of it."""
    supervisor, one, other = (Metrics([], has_fast_tier=False, version="1") for _ in range(3))
    owned = {"store_upkeep_owner": {"sweep": 0}, "upstream_connections": {"http://x": 0}}
    one.read_with(lambda: {"store_up": {"durable": 1}, **owned})
    for workers, up in (([one, other], 0), ([one], 1)):
        numbers = [worker.take() for worker in workers]
        text = (await supervisor.render("text/plain", lambda numbers=numbers: (numbers, [])))[0].decode()
        assert number(text, 'idempotency_store_up{tier="durable"}') == up
        assert number(text, 'idempotency_store_upkeep_owner{duty="sweep"}') == 0
        assert number(text, 'idempotency_upstream_connections{upstream="http://x"}') == 0


async def test_processes_are_added_up() -> None:
    merged = Metrics([], has_fast_tier=False, version="1")
    alone = (await merged.render("text/plain"))[0].decode()
    both = (await merged.render("text/plain", lambda: ([], [os.getpid(), 2**22 + 1])))[0].decode()
    assert number(both, "process_max_fds") == 2 * number(alone, "process_max_fds")
    assert number(both, "process_start_time_seconds") == number(alone, "process_start_time_seconds")
    assert number(both, "process_cpu_seconds_total") > number(alone, "process_cpu_seconds_total")


KINDS = [each for each in vars(facts).values() if isinstance(each, type) and issubclass(each, facts.Fact)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_a_fact_declares_is_there(kind: type[facts.Fact]) -> None:
    """A misspelt attribute would only be met when the event happens, which may be in years."""
    names = {name for _, _, make in kind.lines for name in cast("Any", make).__code__.co_names}
    for change in kind.changes:
        names |= {change.items} if change.items else {*change.attributes, change.value}
        names |= {change.when.partition("=")[0]}
    of_lines = {"", "Line", "PROGRAM", "round", "join", *dir(RequestInfo)}
    assert [name for name in names - of_lines if not hasattr(kind, name)] == []
