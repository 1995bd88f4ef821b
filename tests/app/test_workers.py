"""What makes several workers one gateway: how many there are, what each gets, its seats, and who saves their counts."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.app.share import (
    Handed,
    Seating,
    bind_seats,
    close_seats,
    processors,
    quota_processors,
    share_of,
    worker_count,
)
from gateway.app.supervisor import Channel, Supervisor, WorkerProcess
from gateway.config import Config, parse
from gateway.config.leaf import Address
from gateway.http.server import ListenError
from gateway.store.operations import ActivityRow
from tests.support.house import config_text


def configured(directory: Path, **changes: object) -> Config:
    store = {"durable": f"sqlite://{directory}/operations.db"}
    return parse(config_text("http://127.0.0.1:9", store, directory, **changes))


V2, V1 = "0::/pod/gateway\n", "4:memory:/x\n3:cpu,cpuacct:/docker/abc\n"
# What `/proc/self/cgroup` says, what files below `/sys/fs/cgroup` do, and the quota.
QUOTAS: dict[str, tuple[str | None, dict[str, str], float | None]] = {
    "no-groups": (None, {}, None),
    "no-quota": (V2, {"pod/gateway/cpu.max": "max 100000\n"}, None),
    "group-above": (V2, {"pod/gateway/cpu.max": "800000 100000\n", "pod/cpu.max": "150000 50000\n"}, 3.0),
    "as-a-container-sees-it": ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),
    "hardly-two": ("0::/\n", {"cpu.max": "199999 100000\n"}, 1.99999),
    "version-1": (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "400000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 4.0),
    "nonsense": ("nonsense\n0::/\n", {"cpu.max": "\n"}, None),
}


@pytest.mark.parametrize(("group", "files", "quota"), QUOTAS.values(), ids=QUOTAS)
def test_quota(tmp_path: Path, group: str | None, files: dict[str, str], quota: float | None) -> None:
    """The least of what the groups allow, in both versions of control groups. A part of a processor is none, and there
    is always one."""
    there = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in (there | ({} if group is None else {"proc/self/cgroup": group})).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert quota_processors(tmp_path) == quota
    assert quota is None or processors(tmp_path) == min(max(int(quota), 1), len(os.sched_getaffinity(0)))


def test_as_many_as_the_process_may_use(tmp_path: Path) -> None:
    """Without a quota it is what the process is bound to, and `auto` asks for that."""
    bound = os.sched_getaffinity(0)
    assert processors(tmp_path) == min(len(bound), 64)
    os.sched_setaffinity(0, {min(bound)})
    try:
        assert processors(tmp_path) == 1
        assert worker_count(configured(tmp_path, workers="auto")) == 1
    finally:
        os.sched_setaffinity(0, bound)
    assert worker_count(configured(tmp_path, workers=7)) == 7


def test_limits_are_the_whole_gateways(tmp_path: Path) -> None:
    """Each worker gets an even part, rounded up, and the first alone gets the admin port."""
    whole = configured(
        tmp_path,
        limits={"max_in_flight": 10},
        store={"cache_bytes": "3000"},
        route={"in_flight": {"max_waiters": 4}, "upstream": {"max_connections": 5}},
        upstream={"max_connections": 100},
        admin={"token": "t" * 32},
    )
    parts = [share_of(whole, number, 3) for number in (1, 2, 3)]
    assert {part.limits.max_in_flight for part in parts} == {4}
    assert {part.store.cache_bytes for part in parts} == {1000}
    assert {part.routes[0].in_flight.max_waiters for part in parts} == {2}
    assert {part.upstream.max_connections for part in parts} == {34}
    assert {part.upstream_for(part.routes[0]).max_connections for part in parts} == {2}
    assert [part.admin.token is not None for part in parts] == [True, False, False]
    assert {part.limits.max_header_bytes for part in parts} == {whole.limits.max_header_bytes}


class HalfAnEdge:
    """On which the second of two sockets cannot be listened on, once; `listening` is what is listened on."""

    def __init__(self) -> None:
        self.listening: list[object] = []
        self._failures = [None, ListenError("not this one")]

    async def listen_on(self, sock: socket.socket) -> Any:
        sock.close()
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure
        self.listening.append(listener := object())
        return listener

    def leave(self, listener: Any) -> None:
        self.listening.remove(listener)


async def test_half_a_seat_is_none() -> None:
    """A worker listens on both addresses of a seat, or tries both again; where no descriptor is left for a copy, it
    listens on none, and survives."""
    seats = [bind_seats(Address("127.0.0.1", 0), 1)[1] for _ in range(2)]
    handed = Handed(1, {1: (*seats[0], *seats[1])})
    edge = HalfAnEdge()
    seating = Seating(edge, handed)
    with pytest.raises(ListenError):
        await seating.take((1,))
    assert edge.listening == []
    await seating.take((1,))
    assert len(edge.listening) == 2
    seating.close()
    close_seats(handed.seats)
    with pytest.raises(ListenError, match="cannot listen on a seat"):
        await Seating(edge, handed).take((1,))


@dataclass
class Peer:
    """The other end of a supervisor's channel: a worker that writes what it is told to, or dies when it is."""

    channel: Channel
    dies: bool = False
    asked: list[tuple[ActivityRow, ...]] = field(default_factory=list)

    async def write_activity(self, _service: str, rows: tuple[ActivityRow, ...], _until_seconds: float) -> bool:
        self.asked.append(rows)
        if self.dies:
            await self.channel.close()
        return True


async def test_what_a_worker_does_not_write_is_written_later_or_by_another(tmp_path: Path) -> None:
    """Workers save what they counted as one gateway: one write for all. Where the one that writes dies, another one
    writes; where none does, that is said."""
    supervisor, peers = Supervisor(configured(tmp_path, workers=2), 2), []
    rows = [ActivityRow(UUID(int=number), 1, 2, 3, b"") for number in (1, 2)]
    async with AsyncExitStack() as stack:
        for number, dies in ((1, True), (2, False)):
            one, other = socket.socketpair()
            ours, peer = await Channel.open(one), Peer(await Channel.open(other), dies)
            none: Any = None
            worker = WorkerProcess(
                number, none, ours, bool, supervisor._reload, supervisor._save_activity, has_served=True
            )
            supervisor._workers[number] = worker
            for channel, receiver in ((ours, worker), (peer.channel, peer)):
                stack.callback(asyncio.create_task(channel.serve(receiver)).cancel)
                stack.push_async_callback(channel.close)
            peers.append(peer)
        assert await asyncio.gather(*(supervisor._save_activity("shop", (row,)) for row in rows)) == [True, True]
        assert [peer.asked for peer in peers] == [[(*rows,)], [(*rows,)]]
        peers[1].dies = True
        assert not await supervisor._save_activity("shop", (rows[0],))
