"""Requests whose bodies have yet to come: they take no place from those that are here, nor for long from each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp.streams import StreamReader

from gateway.core.verdict import Verdict
from gateway.http.connection import EdgeSettings
from gateway.http.handler import ClientBody
from gateway.protect.body import NoSlot, UploadSlots
from gateway.protect.reply import Cut, RequestCut
from tests.support.coordination import Pieces, coordination, heard
from tests.support.virtual_time import in_virtual_time, settle

KIB = 1024


class Connection:
    """Where a body of these tests comes from: as much of the edge's as it asks for, and of aiohttp's."""

    settings = EdgeSettings(silence_seconds=60.0, bytes_per_second_min=500.0)
    connected = True

    def __init__(self) -> None:
        self.payload = StreamReader(cast(Any, self), 8192, loop=asyncio.get_running_loop())

    def pause_reading(self) -> None:
        """Nothing is sent unasked."""

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Nothing is sent unasked."""

    async def read_body(self, payload: StreamReader, seconds: float) -> bytes:
        return await payload.readany()

    def cut_body(self, cut: Cut) -> bool:
        if self.payload.is_eof():
            return False
        self.payload.set_exception(RequestCut(cut))
        return True


class Body(ClientBody):
    """A body whose bytes come as the test wants it."""

    def __init__(self, length: int | None = None) -> None:
        self.source = Connection()
        super().__init__(cast(Any, self.source), self.source.payload, length)

    def arrived(self, data: bytes) -> None:
        self.source.payload.feed_data(data)

    def ended(self) -> None:
        self.source.payload.feed_eof()

    def cut_short(self, cut: Cut) -> None:
        self.source.cut_body(cut)


def body(length: int | None = None) -> Body:
    return Body(length)


async def read(coming: ClientBody) -> bytes:
    return b"".join([data async for data in coming.stream()])


async def take(slots: UploadSlots, coming: ClientBody) -> bytes:
    with slots.slot(coming):
        return await read(coming)


@in_virtual_time
async def test_a_slow_body_gives_way_when_all_places_are_taken() -> None:
    """The newcomer gets its place, and the rest of it is not waited for."""
    slots = UploadSlots(1)
    slow, newcomer = body(), body()
    first = asyncio.create_task(take(slots, slow))
    await asyncio.sleep(5.0)
    second = asyncio.create_task(take(slots, newcomer))
    with pytest.raises(NoSlot):
        await first
    newcomer.arrived(b"all")
    newcomer.ended()
    assert await second == b"all"


@in_virtual_time
async def test_a_slow_body_keeps_its_place_while_there_are_others() -> None:
    """Slowness alone is judged by the bound of silence, which is a minute here."""
    slots = UploadSlots(2)
    slow, newcomer = body(), body()
    first = asyncio.create_task(take(slots, slow))
    await asyncio.sleep(50.0)
    newcomer.ended()
    assert await take(slots, newcomer) == b""
    slow.arrived(b"late")
    slow.ended()
    assert await first == b"late"


@in_virtual_time
@pytest.mark.parametrize(("seconds", "pace"), [(4.9, 0), (30.0, 16 * KIB)])
async def test_a_body_that_comes_at_a_pace_keeps_its_place(seconds: float, pace: int) -> None:
    """So does one that has just begun: the newcomer is refused instead."""
    slots = UploadSlots(1)
    coming = body()
    first = asyncio.create_task(take(slots, coming))
    for _ in range(10):
        await asyncio.sleep(seconds / 10)
        if pace:
            coming.arrived(bytes(int(pace * seconds / 10)))
    await settle()
    with pytest.raises(NoSlot):
        await take(slots, body())
    coming.ended()
    assert len(await first) == int(pace * seconds / 10) * 10


@in_virtual_time
async def test_a_body_that_is_cut_short_says_why() -> None:
    """Whose client went does not hear of places, and leaves its own behind."""
    slots = UploadSlots(1)
    coming = body()
    first = asyncio.create_task(take(slots, coming))
    await settle()
    coming.cut_short(Cut.GONE)
    with pytest.raises(RequestCut) as raised:
        await first
    assert raised.value.cut is Cut.GONE
    after = body()
    after.ended()
    assert await take(slots, after) == b""


class Slow(Pieces):
    """A body that gives way to whoever asks for its place."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()
        self._cut = asyncio.Event()

    async def stream(self) -> AsyncIterator[bytes]:
        self.reached.set()
        await self._cut.wait()
        raise RequestCut(Cut.CROWDED_OUT)
        yield b""

    def crowd_out(self) -> bool:
        self._cut.set()
        return True


async def test_bodies_on_their_way_keep_no_short_request_out(tmp_path: Path) -> None:
    """A request that is here whole needs none of their places; one that is not takes a slow one's."""
    async with coordination(tmp_path, in_flight_max=1) as office:
        slow = Slow()
        first = office.ask("slow", slow)
        await slow.reached.wait()
        assert (await office.reply("k1")).verdict is Verdict.STORED
        assert (await office.reply("k2", Pieces(b"{}"))).verdict is Verdict.STORED
        crowded_out = await first
        assert heard(crowded_out) == (503, Verdict.OVERLOADED)
        assert (b"Retry-After", b"1") in crowded_out.headers
        assert len(office.upstream.requests) == 2


async def test_a_body_on_its_way_counts_when_it_is_here(tmp_path: Path) -> None:
    """Where all places of operations were taken meanwhile, it is refused before anything is claimed."""
    async with coordination(tmp_path, in_flight_max=1) as office:
        rest = asyncio.Event()
        late = office.ask("late", Pieces(b"{", rest, b"}"))
        running, hold = await office.begin()
        rest.set()
        assert heard(await late) == (503, Verdict.OVERLOADED)
        hold.set()
        assert heard(await running) == (200, Verdict.STORED)
        assert len(office.memory.records) == 1
