"""Lookups that hang delay nobody but who asks for them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gateway.upstream.connect import Names
from tests.support.eventually import eventually
from tests.support.names import silent_name_server


async def test_lookups_that_were_given_up_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are asked for and cancelled, two threads hang; afterwards the next one is carried out."""
    names = Names()
    async with silent_name_server(monkeypatch) as server:
        for _ in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await names.resolve("a.hangs", 80)
        assert server.running == 2
        await asyncio.to_thread(lambda: None)
    assert (await names.resolve("localhost", 80))[0]["host"] == "127.0.0.1"
    await eventually(lambda: server.running == 0)


def test_the_end_of_a_loop_waits_for_no_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the end of the program: the thread is a daemon."""

    async def stop_meanwhile() -> threading.Event:
        async with silent_name_server(monkeypatch) as server:
            over, server.over = server.over, threading.Event()
            task = asyncio.create_task(Names().resolve("a.hangs", 80))
            await asyncio.to_thread(server.asked.acquire)
            assert {each.daemon for each in threading.enumerate() if each.name == "names"} == {True}
            task.cancel()
            over.set()
            return server.over

    asyncio.run(stop_meanwhile()).set()
