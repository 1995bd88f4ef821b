"""How many workers there are, and each one's share of the configuration.

Configured limits are those of the whole gateway, so they do not depend on the number of its processes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

from gateway.config import Config
from gateway.config.delivery import RouteDelivery
from gateway.config.models import WORKERS_MAX, Admin
from gateway.config.section import DIVIDED, Section
from gateway.config.upstream import RouteUpstream

# -- cpus --------------------------------------------------------------------------------------------------------------
#
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
    """How many processes serve."""
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
