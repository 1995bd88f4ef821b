"""The hosts that the URL of a Postgres lists, and which of them to use: a decision over values.

Theory of operation
-------------------
*Highest timeline.* A promotion starts a new timeline. Of several primaries, the one of the highest timeline is the one
that was promoted last. Timelines compare only within one system: standbys have the system identifier of their primary.

*Never back.* A primary of a lower timeline than one that was met is a former primary, which nobody has stopped. What is
written there is lost, so it is not used, even while no other host responds. To use it after all, remove the others from
the list: the gateway then compares it as another memory. Where no timeline is said, former primaries are not known.

*Two of the highest.* Two servers that were promoted apart, or copied, have the same timeline, and each may have what
the other lacks. None is used until one of them is gone. The start time distinguishes two servers from one server that
has two names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

# Asked of each host. A standby has no position to write at, so the function for it fails there. A server may keep each
# of these from its users.
IS_STANDBY: Final = "current_setting('in_hot_standby', true) = 'on'"
SYSTEM: Final = "(SELECT system_identifier::text FROM pg_control_system())"
STARTED: Final = "pg_postmaster_start_time()::text"
TIMELINE: Final = f"CASE WHEN {IS_STANDBY} THEN NULL ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END"


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a list. `dsn` may hold a password; `name` is for logs."""

    name: str
    dsn: str


@dataclass(frozen=True, slots=True)
class HostStatus:
    """What a host reported; `timeline` is None for a standby, and 0 where it is not said. `started` distinguishes
    servers of one system."""

    host: Host
    system: str
    started: str
    timeline: int | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why none is used. `is_split` if that needs an operator: two servers take themselves for the primary."""

    why: str
    is_split: bool = False


def hosts_of(url: str) -> list[Host]:
    """The hosts that a URL lists, in its authority or as its option `host`, each as a URL of its own."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    credentials, at, authority = parts.netloc.rpartition("@")
    listed = authority or options.get("host", "")
    names = listed.split(",")
    if len(names) == 1:
        return [Host(listed or "localhost", url)]
    # The gateway looks for the primary itself.
    options.pop("target_session_attrs", None)
    ports = options.get("port", "").split(",")
    if not authority and len(ports) == 1:
        ports *= len(names)
    hosts = []
    for place, name in enumerate(names):
        if authority:
            own = parts._replace(netloc=f"{credentials}{at}{name}", query=urlencode(options))
            hosts.append(Host(name, own.geturl()))
            continue
        port = ports[place] if place < len(ports) else ""
        own = parts._replace(query=urlencode({**options, "host": name, **({"port": port} if port else {})}))
        hosts.append(Host(f"{name}:{port}" if port else name, own.geturl()))
    return hosts


def choose(statuses: Iterable[HostStatus], met: Mapping[str, int]) -> HostStatus | Refusal:
    """The primary to use of these; `met` is the highest timeline that was met of each system."""
    primaries = sorted((each for each in statuses if each.timeline is not None), key=_timeline, reverse=True)
    former = [each for each in primaries if _timeline(each) < met.get(each.system, 0)]
    candidates = [each for each in primaries if each not in former]
    if not candidates:
        if former:
            number, its = met[former[0].system], _timeline(former[0])
            return Refusal(f"{former[0].host.name} is a former primary: it has timeline {its}, and {number} was met")
        return Refusal("no host that responds is a primary")
    # Timelines of different systems do not compare.
    highest = [
        each for each in candidates if each.system != candidates[0].system or each.timeline == candidates[0].timeline
    ]
    if len({(each.system, each.started) for each in highest}) > 1:
        return Refusal(
            f"{_names(highest)} both accept writes, and neither is known to have what the other has: stop the one that "
            "is not to be used",
            is_split=True,
        )
    return candidates[0]


def _timeline(status: HostStatus) -> int:
    return status.timeline or 0


def _names(statuses: Sequence[HostStatus]) -> str:
    return " and ".join(each.host.name for each in statuses)
