"""Two gateways of one host on one store and one state directory, as while one replaces the other: they share both, as
workers do."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from tests.integration.hand import begin
from tests.support.eventually import eventually
from tests.support.fleet import NOW, gateways_on, key_of, send, wait_answered
from tests.support.house import status_of, stores
from tests.support.upstream import Answer, RecordingUpstream

_DONE = frozenset(("stored", "replayed", "journaled"))


store = stores("sqlite", full=["postgres"])


async def test_each_key_runs_once_whoever_ends_and_starts_again(
    tmp_path: Path, store: dict[str, Any], upstream: RecordingUpstream
) -> None:
    """Under load of both; one of them is killed in the middle and comes back, then the other stops. No memory is lost,
    and what the killed one was working on is in doubt, or was never sent."""
    shared: Any = {"state_dir": str(tmp_path / "state"), "store": {"lease": "3s", "cache_max_age": "0s"}}
    async with gateways_on(store, tmp_path, upstream.url, ("one", "two"), **shared) as (one, two):
        ports = [one.port, two.port]

        async def both(key: str) -> None:
            answers = await asyncio.gather(*(wait_answered(port, key, verdicts=_DONE) for port in ports))
            assert {answer.status for answer in answers} == {201}

        await asyncio.gather(*(both(f"first-{number}") for number in range(20)))
        lost, hold = await begin(one, upstream, "interrupted")
        one.kill()
        await lost
        upstream.on("/charges", Answer(201))
        hold.set()
        await one.start()
        await asyncio.gather(*(both(f"second-{number}") for number in range(20)))

        async def is_in_doubt() -> bool:
            return {status_of(await send(port, "interrupted", headers=NOW)) for port in ports} == {(409, "in-doubt")}

        await eventually(is_in_doubt, 30.0, "both know of the doubt")
        for gateway in (one, two):
            assert (await gateway.status("/readyz")).json()["parts"]["memory"] == "whole"
        assert two.terminate() == 0
        for key in ("first-0", "second-0"):
            assert status_of(await send(one.port, key)) == (201, "replayed")
        assert status_of(await send(one.port, "third")) == (201, "stored")
        assert (await one.status("/readyz")).json()["parts"]["memory"] == "whole"
    twice = [key for key, count in Counter(map(key_of, upstream.requests)).items() if count > 1]
    assert not twice
