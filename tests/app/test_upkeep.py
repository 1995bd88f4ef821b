"""What a gateway does by itself is for all gateways of its store, when it is its turn."""

from __future__ import annotations

from pathlib import Path

from gateway.upkeep.duty import LOOK_SECONDS, Duty
from tests.observe.scrape import Scrape
from tests.support.eventually import eventually
from tests.support.house import House, house, sqlite_store


async def scraped(running: House) -> Scrape:
    return Scrape((await running.status("/metrics")).body.decode())


async def owned(running: House) -> dict[str, float]:
    told = await scraped(running)
    return {duty: told.value("idempotency_store_upkeep_owner", duty=duty.value) for duty in Duty}


async def test_a_gateway_alone_has_all_turns(tmp_path: Path) -> None:
    """And does nothing for all once it has none."""
    async with house(sqlite_store(tmp_path), tmp_path) as running:
        parts = running.gateway.parts
        await eventually(lambda: parts.turns.has(Duty.SWEEP), what="it has its turns")
        assert await owned(running) == dict.fromkeys(Duty, 1.0)
        passes = parts._recovery._pass, parts._tally_taker._pass
        assert [await run_pass() > LOOK_SECONDS for run_pass in passes] == [True] * 2
        parts.turns.stop()
        assert await owned(running) == dict.fromkeys(Duty, 0.0)
        assert [await run_pass() for run_pass in passes] == [LOOK_SECONDS] * 2
        swept = (await scraped(running)).value("idempotency_sweep_duration_seconds_count")
        await parts._sweeper.run_once()
        assert (await scraped(running)).value("idempotency_sweep_duration_seconds_count") == swept


async def test_gateways_with_other_routes_have_other_turns(tmp_path: Path) -> None:
    """Each recovers and counts what the other does not; they sweep the same records."""
    async with house(sqlite_store(tmp_path), tmp_path / "one") as one:
        await eventually(lambda: one.gateway.parts.turns.has(Duty.SWEEP), what="it has its turns")
        changes = {"route": {"name": "refunds", "recovery": PROBE, "match": {"path": "/refunds"}}}
        async with house(sqlite_store(tmp_path), tmp_path / "two", **changes) as two:
            await eventually(lambda: two.gateway.parts.turns.has(Duty.RECOVERY), what="it has a turn of its own")
            assert not two.gateway.parts.turns.has(Duty.SWEEP)
            assert one.gateway.parts.turns.has(Duty.RECOVERY)


PROBE = {
    "probe": {"path": "/refunds/{operation_id}", "done": [{"status": [200]}], "never_happened": [{"status": [404]}]}
}
