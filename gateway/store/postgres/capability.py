"""What a Postgres lets the gateway do, and what follows where it does not: for servers that are run by others.

It asks over a connection of its own, whatever the server is like, and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from gateway.store.base import NotApplied
from gateway.store.postgres.connection import fault_of
from gateway.store.postgres.dialer import COMMAND_SECONDS, DURABILITY, SERVER_MAJOR_MIN, Dialer, Durability, losses

# What is called, by which query, and what follows where it is refused.
_CALLS: Final = (
    ("pg_control_system()", "SELECT system_identifier FROM pg_control_system()", "the gateway does not start"),
    (
        "pg_walfile_name()",
        "SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_walfile_name(pg_current_wal_lsn()) END",
        "the gateway does not start",
    ),
    ("pg_conf_load_time()", "SELECT pg_conf_load_time()", "gateways cannot be listed, and grant nothing"),
    ("pg_stat_replication", "SELECT count(*) FROM pg_stat_replication", "gateways cannot be listed, and grant nothing"),
    ("advisory locks", "SELECT pg_try_advisory_xact_lock(0)", "migrations, lanes and `repeats: refuse` fail"),
    ("LISTEN", "LISTEN idempotency_gateway_check", "waiters of other gateways poll: write ?pgbouncer=true"),
)
_SETTINGS: Final = """
SELECT
    current_setting('server_version_num')::integer / 10000 AS major,
    'PostgreSQL ' || current_setting('server_version') AS version,
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names') AS standbys,
    pg_is_in_recovery() AS in_recovery,
    current_setting('transaction_read_only') AS read_only
"""


@dataclass(frozen=True, slots=True)
class Capability:
    """What the gateway needs or makes use of. `state` is ok, refused, off or none; `then` is what follows from that."""

    name: str
    state: str
    then: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.state}{self.then and ', '}{self.then}"


async def capabilities(
    url: str, durability: Durability = "server", command_seconds: float = COMMAND_SECONDS
) -> list[Capability]:
    """What the server allows. Raises `NotApplied` where it cannot be asked, or has not told all in that time."""
    dialer = Dialer(url)
    connection = await dialer.connect_ungreeted()
    try:
        async with asyncio.timeout(command_seconds):
            (row,) = await connection.fetch(_SETTINGS)
            found = list(_of_settings(row, durability))
            for name, query, consequence in _CALLS:
                if name == "LISTEN" and dialer.pgbouncer:
                    found.append(Capability(name, "none", "waiters of other gateways poll behind a pooler"))
                    continue
                try:
                    await connection.fetch(query)
                except Exception as error:  # noqa: BLE001 -- whatever it is, it is refused
                    found.append(Capability(name, "refused", f"{consequence} ({fault_of(error)})"))
                else:
                    found.append(Capability(name, "ok"))
            return found
    except Exception as error:
        raise NotApplied(*fault_of(error).args) from error
    finally:
        connection.terminate()


def _of_settings(row: Any, durability: Durability) -> Iterator[Capability]:
    is_old = row["major"] < SERVER_MAJOR_MIN
    yield Capability(row["version"], *("refused", f"{SERVER_MAJOR_MIN} or later is needed") if is_old else ("ok",))
    is_standby = row["in_recovery"] or row["read_only"] == "on"
    yield Capability("writes", *("refused", "it is a standby, or read-only") if is_standby else ("ok",))
    lost = losses(row, durability)
    for name in DURABILITY:
        if row[name] == "off":
            yield Capability(name, "off", lost.get(name, "not looked at, because of store.durability: external"))
        else:
            yield Capability(name, "ok")
    has_standby = row["standbys"] and row["synchronous_commit"] in ("on", "remote_apply")
    alone = ("none", "a standby that is promoted may lack what was acknowledged, which is noticed")
    yield Capability("synchronous standby", *("ok",) if has_standby else alone)
