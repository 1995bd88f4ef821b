"""What a Redis server must be like to keep operations alone: judged by what it says of itself.

Theory of operation
-------------------
*On the disk first.* A command is acknowledged once the server, and every replica that may be promoted, have it on their
disk: `WAITAOF 1 R` where the server has it, otherwise `appendfsync always` and `WAIT R`. Fewer, or too late: it is not
known whether the command took effect.

*Nothing is dropped.* Any `maxmemory-policy` but `noeviction` deletes records when memory runs out. A user that may
flush the database can delete all of them by one slip.

*Said by the server.* All this is read on every new connection and every few seconds. A server that says nothing of it
is not used. What it cannot say is left to the operator: how many of its replicas may be promoted (`store.replicas`),
and whether theirs is a disk that keeps what it was told to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.core.immutable import immutable
from gateway.store.base import NotApplied
from gateway.store.redis.connection import Link, RedisCommand, refusal, run_lines

SETTINGS: Final = (
    "appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy", "replica-read-only",
)  # fmt: skip
# Refused for their argument, before anything is flushed, where the user may flush.
_FLUSHES: Final = ("FLUSHALL", "FLUSHDB")
_NO_FLUSH: Final = "not-really"

LOOK: Final[Sequence[RedisCommand]] = (
    ("INFO",),
    *(("CONFIG", "GET", name) for name in SETTINGS),
    *((command, _NO_FLUSH) for command in _FLUSHES),
)
"""The commands whose replies `read` takes."""

_WAITAOF_SINCE: Final = (7, 2)
_NO_HISTORY: Final = "0" * 40


@immutable
class Server:
    """What a server says of itself. `replicas` are those that have caught up and are connected; `has_history`: it took
    over from another server since it was started. A setting is empty where the server does not tell."""

    run_id: str
    is_replica: bool
    is_cluster: bool
    has_waitaof: bool
    has_history: bool
    replicas: int
    settings: Mapping[str, str]
    flushes: tuple[str, ...]

    def why_not(self, replicas: int | None) -> str:
        """Why it must not keep operations alone until an operator changes something, and what; empty if it may.
        `replicas` is how many may be promoted; None: the configuration does not say."""
        settings, found = self.settings, []
        if hidden := [name for name in SETTINGS if not settings[name]]:
            return (
                f"it does not tell {', '.join(hidden)}: let the gateway's user run `CONFIG GET`; a service that hides "
                "it cannot be the durable store"
            )
        if settings["appendonly"] != "yes":
            found.append(
                "appendonly is not yes: a crash loses acknowledged responses, and their keys execute again; set it in "
                "its file and start it again, because CONFIG SET replaces the log on its disk by what is in memory"
            )
        if settings["appendfsync"] != "always" and not self.has_waitaof:
            found.append("appendfsync is not always, and the server is too old for WAITAOF (Redis 7.2, Valkey)")
        if settings["no-appendfsync-on-rewrite"] != "no" and not self.has_waitaof:
            found.append("no-appendfsync-on-rewrite is not no: while its log is written anew, nothing is synced")
        if settings["maxmemory-policy"] != "noeviction":
            found.append("maxmemory-policy is not noeviction: it would delete records when memory runs out")
        if settings["replica-read-only"] != "yes":
            found.append("replica-read-only is not yes: somebody may change what a replica has")
        if self.flushes:
            found.append(
                f"the gateway's user may run {' and '.join(self.flushes)}, which deletes every key at one slip: give "
                "the gateway a user without them (ACL SETUSER ... -flushall -flushdb)"
            )
        if replicas is None and self.replicas:
            found.append(f"replicas that follow it: {self.replicas}; say in store.replicas how many may be promoted")
        return "; ".join(found)

    def why_not_now(self, replicas: int | None) -> str:
        """Likewise, until the replicas that may be promoted are back."""
        if self.replicas >= (replicas or 0):
            return ""
        return f"replicas that have caught up: {self.replicas}, and store.replicas is {replicas}"


def read(link: Link, replies: Sequence[Any]) -> Server:
    """Decode the replies to `LOOK`. Raises `NotApplied` for a server that does not say what it is."""
    info, *rest = replies
    lines = run_lines(link, info)
    if lines.get("loading", "0") != "0":
        raise NotApplied("Redis is loading its data")
    settings = {
        name: reply[1].decode() if not refusal(reply) and len(reply) == 2 else ""
        for name, reply in zip(SETTINGS, rest, strict=False)
    }
    flushes = [
        command
        for command, reply in zip(_FLUSHES, rest[len(SETTINGS) :], strict=True)
        if refusal(reply) != "NOPERM" and "unknown command" not in str(reply)
    ]
    is_valkey = "valkey_version" in lines
    return Server(
        lines["run_id"],
        is_replica=lines["role"] != "master",
        is_cluster=lines.get("cluster_enabled") == "1",
        has_waitaof=is_valkey or _version(lines.get("redis_version", "")) >= _WAITAOF_SINCE,
        has_history=lines.get("master_replid2", _NO_HISTORY) != _NO_HISTORY,
        replicas=sum("state=online" in text for name, text in lines.items() if re.fullmatch(r"slave\d+", name)),
        settings=settings,
        flushes=tuple(flushes),
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
