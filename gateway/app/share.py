"""How many workers there are, and each one's share: of configured limits, and of the sockets that accept connections.

Configured limits are those of the whole gateway, so they do not depend on the number of its processes.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from gateway.app.life import StartError
from gateway.config import Config
from gateway.config.delivery import RouteDelivery, RouteUpstream
from gateway.config.leaf import Address
from gateway.config.models import WORKERS_MAX, Admin
from gateway.config.section import DIVIDED, Section
from gateway.http.server import Edge, Listener, ListenError, bound_socket, listen_fault
from gateway.upkeep.activity import Save

# -- cpus --------------------------------------------------------------------------------------------------------------
# How many processors this process may use: its CPU affinity, and the quota of its control groups.
#
# A fractional quota is rounded down: two processes on one and a half processors are both halted once the quota of a
# period is used up, whatever they are doing.

_ROOT: Final = Path("/")


def processors(root: Path = _ROOT) -> int:
    """Whole processors, at least one. `root` is where `/proc` and `/sys` are."""
    try:
        bound = len(os.sched_getaffinity(0))
    except AttributeError:
        # Not every system has CPU affinity.
        bound = os.cpu_count() or 1
    quota = quota_processors(root)
    allowed = bound if quota is None else min(bound, math.floor(quota))
    return min(max(1, allowed), WORKERS_MAX)


def quota_processors(root: Path) -> float | None:
    """The smallest quota of the control groups of this process and their ancestors; None without one."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    # cgroups(7): hierarchy, controllers, path. Version 2 has hierarchy 0 and names no controllers.
    found: list[float] = []
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if not controllers:
            found += _quotas(root / "sys/fs/cgroup", path, "cpu.max")
        elif "cpu" in controllers.split(","):
            for mount in (controllers, "cpu"):
                found += _quotas(root / "sys/fs/cgroup" / mount, path, "cpu.cfs_quota_us")
    return min(found, default=None)


def _quotas(mount: Path, path: str, name: str) -> Iterator[float]:
    """The quotas from the group up to the mount: a container may see its own group only as the mount itself."""
    group = Path(path.lstrip("/"))
    for directory in (group, *group.parents):
        try:
            numbers = (mount / directory / name).read_text().split()
            if name != "cpu.max":
                numbers.append((mount / directory / "cpu.cfs_period_us").read_text().strip())
            quota, period = int(numbers[0]), int(numbers[1])
        except (OSError, ValueError, IndexError):
            # Absent, or `max`.
            continue
        if quota > 0 and period > 0:
            yield quota / period


# -- share -------------------------------------------------------------------------------------------------------------

T = TypeVar("T", bound=Section)

# A worker has the admin port, because the port needs a store. Only one has it, because one has to count wrong tokens.
FIRST: Final = 1


def worker_count(config: Config) -> int:
    return processors() if config.workers == "auto" else config.workers


def share_of(config: Config, number: int, count: int) -> Config:
    """The configuration of one of `count` workers. Limits that do not divide evenly are rounded up."""
    divided = _divided(config, count)
    return divided if number == FIRST else divided.model_copy(update={"admin": Admin()})


def _divided(section: T, count: int) -> T:
    parts: dict[str, object] = {}
    for name, field in type(section).model_fields.items():
        match getattr(section, name):
            case Section() as whole if (part := _divided(whole, count)) is not whole:
                parts[name] = part
            case (Section(), *_) as sections:
                divided = tuple(_divided(each, count) for each in sections)
                if any(part is not whole for part, whole in zip(divided, sections, strict=True)):
                    parts[name] = divided
            case int() as total if DIVIDED in field.metadata and _counts(section, name):
                parts[name] = -(-total // count)
    return section.model_copy(update=parts) if parts else section


def _counts(section: Section, name: str) -> bool:
    """Whether a setting is not one that a route inherits."""
    return name in section.model_fields_set or not isinstance(section, RouteUpstream | RouteDelivery)


# -- seats -------------------------------------------------------------------------------------------------------------
# The sockets that workers accept connections on: each worker has its own, all on the same address.
#
# The kernel spreads connections over the sockets (SO_REUSEPORT, socket(7)), evenly and whatever the workers are doing.
# With one shared socket, connections that a client's pool opens at once go to the worker that wakes first. A socket
# would die with its worker, and connections queued in it be reset. So the supervisor makes the sockets and keeps them
# open: a seat outlives its worker, and while that is away, another one accepts its connections.

Seat = tuple[socket.socket, ...]
"""The sockets of one worker: one for each address that the host name resolves to."""


@dataclass(frozen=True, slots=True)
class Handed:
    """What a worker gets: its number, every seat by its number, and how it has saved what it counted. The sockets are
    this process's own copies."""

    number: int
    seats: Mapping[int, Seat]
    save: Save | None = None


def bind_seats(address: Address, count: int) -> dict[int, Seat]:
    """Seats for `count` workers, numbered from 1. No connection arrives until a worker listens. Raises `StartError`."""
    seats: dict[int, Seat] = {}
    try:
        addresses = _resolved(address)
        for number in range(1, count + 1):
            # For port 0 the system chooses the first port; the other seats use the same one.
            seats[number] = tuple(bound_socket(family, sockaddr, is_shared=True) for family, sockaddr in addresses)
            addresses = [(sock.family, sock.getsockname()) for sock in seats[number]]
    except OSError as error:
        close_seats(seats)
        raise StartError(f"{listen_fault(address.host, address.port, error)} (listen)") from error
    return seats


def close_seats(seats: Mapping[int, Seat]) -> None:
    """Close this process's copies."""
    for seat in seats.values():
        for sock in seat:
            sock.close()


def shares(count: int, serving: Collection[int]) -> dict[int, frozenset[int]]:
    """Which seats each serving worker listens on: its own, and those before it whose worker is away."""
    if not serving:
        return {}
    assigned: dict[int, set[int]] = {number: set() for number in serving}
    for seat in range(1, count + 1):
        assigned[min(serving, key=lambda number: (number - seat) % count)].add(seat)
    return {number: frozenset(seats) for number, seats in assigned.items()}


class Seating:
    """The seats that this worker listens on."""

    def __init__(self, edge: Edge, handed: Handed) -> None:
        self._edge = edge
        self._handed = handed
        self._listeners: dict[int, list[Listener]] = {}
        self._is_closed = False

    async def take(self, numbers: Collection[int] | None = None) -> None:
        """Listen on these seats, first on this worker's own, and on no others. Raises `ListenError`."""
        numbers = (self._handed.number,) if numbers is None else numbers
        for number in set(self._listeners) - set(numbers):
            for listener in self._listeners.pop(number):
                self._edge.leave(listener)
        for number in sorted(set(numbers) - set(self._listeners)):
            listeners: list[Listener] = []
            try:
                for sock in self._handed.seats[number]:
                    if self._is_closed:
                        return
                    # A listener closes its socket.
                    listeners.append(await self._edge.listen_on(_copy_of(sock)))
            except ListenError:
                # The next attempt starts with the whole seat again.
                while listeners:
                    self._edge.leave(listeners.pop())
                raise
            finally:
                if listeners:
                    self._listeners[number] = listeners

    def close(self) -> None:
        """Close every seat: one that any process has open would go on queueing connections."""
        self._is_closed = True
        close_seats(self._handed.seats)


def _copy_of(sock: socket.socket) -> socket.socket:
    """Raises `ListenError` when no descriptor is left for it."""
    try:
        return sock.dup()
    except OSError as error:
        raise ListenError(f"cannot listen on a seat: {error.strerror or error}") from error


def _resolved(address: Address) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = list(dict.fromkeys((int(family), sockaddr) for family, _, _, _, sockaddr in found))
    for family, sockaddr in addresses:
        if sockaddr[1]:
            # Without SO_REUSEPORT, to notice any process that listens there already, also another gateway.
            bound_socket(family, sockaddr).close()
    return addresses
