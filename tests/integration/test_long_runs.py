"""Short runs of what `make proof` runs for long: gateways under kills, failovers and reloads, judged from outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.accepting import accept_under_kills
from tests.integration.fast_failover import fail_over
from tests.integration.journal_kills import run as kill_under_a_journal
from tests.integration.lanes import deliver_under_kills, judge
from tests.integration.publishing import publish_under_kills
from tests.integration.reloading import reload_under_load
from tests.integration.sentinel import of_redis, search
from tests.integration.soak import soak
from tests.integration.test_journal import Outage, of_postgres, of_sqlite
from tests.support.house import sqlite_store, stores
from tests.support.postgres import PostgresInstallation, workspace

store = stores("postgres", full=["sqlite"])


async def test_what_was_accepted_outlives_the_gateway(store: dict[str, Any], tmp_path: Path) -> None:
    """Each 202 is delivered once by another gateway, or is in doubt and found by its status URL."""
    verdict = await accept_under_kills(tmp_path, store, kills=2, seed=1)
    assert not verdict.faults, verdict
    assert verdict.effects > 0, verdict


async def test_what_was_told_is_told_again(store: dict[str, Any], tmp_path: Path) -> None:
    """Whatever is killed, stopped, refused or away: the recorded response, or 503 with `Retry-After`."""
    report = await kill_under_a_journal(tmp_path, store, kills=3, seed=7)
    assert not report.faults, report
    # It went through what it is there for.
    assert {"journaled", "stored"} <= report.firsts.keys()
    assert report.words["201 replayed"] > 0


async def test_order_over_two_gateways(postgres_store: dict[str, Any], tmp_path: Path) -> None:
    """Under 503s and kills, the service's ledger has each lane in the order of acceptance, and doubt is not passed."""
    verdict = await deliver_under_kills(tmp_path, postgres_store, kills=2, seed=1, lanes=4, has_consumer=False)
    assert not verdict.faults, verdict
    assert verdict.effects > 0, verdict


@pytest.fixture
def postgres_store(migrated_url: str) -> dict[str, Any]:
    return {"durable": migrated_url}


@pytest.mark.parametrize(
    ("is_ordered", "states", "effects", "arrived", "is_kept"),
    [
        (True, ["completed"] * 2, [0, 1], [0, 0, 1], True),
        (True, ["completed"] * 2, [1, 0], [1, 0], False),
        (True, ["completed"] * 2, [0, 1], [0, 1, 0, 1], False),
        (True, ["completed"] * 2, [0], [0], False),
        (True, ["completed", "in_doubt", "accepted"], [0], [0, 1], True),
        (True, ["completed", "in_doubt", "completed"], [0, 2], [0, 1, 2], False),
        (True, ["completed", "accepted"], [0], [0], False),
        (False, ["completed", "in_doubt", "completed"], [2, 0], [2, 1, 0, 2], True),
        (False, ["completed"] * 2, [1, 0, 1], [1, 0, 1], False),
        (False, ["in_doubt", "accepted"], [0], [0], False),
    ],
)
def test_the_judge_of_lanes(
    is_ordered: bool, states: list[str], effects: list[int], arrived: list[int], is_kept: bool
) -> None:
    """It knows a lane that was kept from every other."""
    faults = judge("a", dict(enumerate(states)), effects, arrived, is_ordered=is_ordered)
    assert (not faults) is is_kept


@pytest.mark.full
async def test_every_sink_hears_of_what_was_completed_and_of_nothing_else(tmp_path: Path) -> None:
    """Two webhooks, NATS and Redis: one event for each completed operation, whatever is killed."""
    verdict = await publish_under_kills(tmp_path, sqlite_store(tmp_path), seconds=2.0, seed=1)
    assert not verdict.faults, verdict
    assert verdict.completed > 0, verdict


@pytest.mark.parametrize(
    "workers", [pytest.param(1, id="one-process"), pytest.param(2, id="two-workers", marks=pytest.mark.full)]
)
async def test_reloads_under_load(tmp_path: Path, workers: int) -> None:
    """Nothing is lost, no key runs twice, and what is in flight keeps the policy that it began with."""
    verdict = await reload_under_load(tmp_path, sqlite_store(tmp_path), workers=workers, reloads=4, rate=200.0)
    assert not verdict.faults, verdict
    # There was a load, on every client.
    assert verdict.answered > 10


@pytest.mark.parametrize("kind", ["sentinel", pytest.param("cluster", marks=pytest.mark.full)])
async def test_replays_go_on(kind: str, postgres_url: str, server_workspace: Path, tmp_path: Path) -> None:
    """Whoever is master: each key is executed once, replayed as it was answered, and not after its purge is known."""
    verdict = await fail_over(tmp_path, {"durable": postgres_url}, kind, faults=("flush", "kill"), seed=2)
    assert not verdict.faults, verdict
    assert verdict.stored
    assert verdict.from_redis, verdict
    assert verdict.purged, verdict


_OPERATIONS = 24


@pytest.fixture(
    params=["postgres-redis", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("sqlite", "redis"))]
)
def that_goes_away(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Outage, str | None]]:
    """A durable store that can go away, and the URL of the fast tier before it."""
    if request.param == "sqlite":
        yield of_sqlite(tmp_path), None
    elif request.param == "redis":
        with of_redis(tmp_path) as outage:
            yield outage, None
    else:
        yield of_postgres(request.getfixturevalue("own_postgres")), request.getfixturevalue("redis_url")


async def test_it_is_nowhere(that_goes_away: tuple[Outage, str | None], tmp_path: Path) -> None:
    """Whatever a caller, the service, a sender or an operator says is encrypted wherever it is kept, and in no log."""
    outage, redis = that_goes_away
    found = await search(outage, tmp_path, operations=_OPERATIONS, redis=redis)
    assert not any(found.places.values()), found
    done = {"stored", "replayed", "accepted", "in-doubt", "journaled", "key-reused", "released", "response-not-stored"}
    absent = {"accepted"} if outage.section["durable"].startswith("redis") else set()
    assert done - set(found.verdicts) <= {"response-not-stored", *absent}, found


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("redis", marks=pytest.mark.full)])
async def test_without_encryption_it_is_found(kind: str, tmp_path: Path) -> None:
    """The search would find it: in the store, the journal and the spool; and never in the log or a metric."""
    with ExitStack() as stack:
        outage: Outage = stack.enter_context(of_redis(tmp_path)) if kind == "redis" else of_sqlite(tmp_path)
        found = await search(outage, tmp_path, operations=12, is_encrypted=False)
    assert all(found.places[when] for when in ("journal", "spool", "store")), found
    assert not found.places["log"], found
    assert not found.places["metrics"], found


@pytest.mark.full
async def test_short_soak(postgres_installation: PostgresInstallation) -> None:
    """After outages of the store, lost answers, duplicates that wait and clients that vanish, the books balance."""
    with workspace("soak") as directory:
        report = await soak(directory, postgres_installation, seconds=2.0, seed=3)
    print(report)
    assert not report.faults, report
    # It soaked.
    assert report.done.total() >= 1
    assert {"stored", "replayed", "store-unavailable"} <= report.words.keys()
    assert report.numbers["journaled"] >= 1
    assert report.numbers["calls without a response"] >= 1
