"""What becomes of an attempt that outlives the shutdown of its gateway, as the next gateway finds it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.house import neighbour, status_of
from tests.support.upstream import Answer, RecordingUpstream

Store = dict[str, Any]


async def test_what_outlives_the_drain_is_said_to_be_in_doubt(store: Store, tmp_path: Path) -> None:
    """It is in doubt at once, not when its lease would have lapsed, and nobody runs it again."""
    changes: dict[str, Any] = {"route": {"in_flight": {"wait": "0s"}}}
    async with RecordingUpstream() as upstream:
        upstream.on("/charges", Answer(hold=asyncio.Event()), Answer())
        short = {"delay": "0s", "drain_timeout": "100ms"}
        async with neighbour(store, tmp_path, upstream, shutdown=short, **changes) as home:
            sending = asyncio.create_task(home.send("k1"))
            await upstream.wait_for_requests(1)
        await asyncio.gather(sending, return_exceptions=True)
        async with neighbour(store, tmp_path / "n", upstream, **changes) as other:
            assert status_of(await other.send("k1")) == (409, "in-doubt")
        assert len(upstream.requests) == 1
