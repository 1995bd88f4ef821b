"""What a Postgres lets the gateway do, and what follows where it does not: for servers that are run by others.

It asks over a connection of its own, whatever the server is like, and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from gateway.store.base import NotApplied
from gateway.store.postgres.connection import DURABILITY, SERVER_MAJOR_MIN, Connection, Durability, fault_of, losses
from gateway.store.postgres.dialer import COMMAND_SECONDS, Dialer
from gateway.store.postgres.hosts import IS_STANDBY, STARTED, SYSTEM, TIMELINE

_NO_TIMELINE: Final = (
    "a promotion is not noticed as one: that it lost something is seen only by a gateway that had been told of it, "
    "when it connects again. Replicate synchronously"
)
_WAITS: Final = "a gateway that starts waits for store.probation before it grants new keys"
# What is called, by which query, and what follows where it is refused.
_CALLS: Final = (
    (
        "pg_control_system()",
        f"SELECT {SYSTEM}",
        "a copy on another server is told from its original only by what it lacks",
    ),
    ("pg_walfile_name()", f"SELECT {TIMELINE}", _NO_TIMELINE),
    ("pg_conf_load_time()", "SELECT pg_conf_load_time()", f"{_WAITS}, also with a synchronous standby"),
    ("pg_stat_replication", "SELECT count(*) FROM pg_stat_replication", f"{_WAITS}, also without a standby"),
    (
        "pg_postmaster_start_time()",
        f"SELECT {STARTED}",
        "where the URL has several hosts, two names of one server count as two servers",
    ),
    (
        "advisory locks",
        "SELECT pg_try_advisory_xact_lock(0, 0)",
        "migrations fail, and so does all that needs the store",
    ),
    ("LISTEN", "LISTEN idempotency_gateway_check", "waiters of other gateways poll: write ?pgbouncer=true"),
)
# The same by the rights of the schema's owner, which the gateway goes by where the schema exists; null where it was
# refused.
_BY_OWNER: Final = {
    "pg_control_system()": "SELECT CASE WHEN system <> '' THEN {schema}.server_system() END FROM {schema}.epoch",
    "pg_walfile_name()": "SELECT CASE WHEN timeline <> '' THEN {schema}.server_timeline() END FROM {schema}.epoch",
    "pg_conf_load_time()": "SELECT {schema}.settings_loaded_at()",
    "pg_stat_replication": "SELECT {schema}.may_have_standby()",
}
_SETTINGS: Final = f"""
SELECT
    current_setting('server_version_num')::integer / 10000 AS major,
    'PostgreSQL ' || current_setting('server_version') AS version,
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names') AS standbys,
    coalesce({IS_STANDBY}, false) AS in_recovery,
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
                refused = await _why_refused(connection, name, query)
                found.append(
                    Capability(name, "refused", f"{consequence} ({refused})") if refused else Capability(name, "ok")
                )
            return found
    except Exception as error:
        raise NotApplied(*fault_of(error).args) from error
    finally:
        connection.terminate()


async def _why_refused(connection: Connection, name: str, query: str) -> str:
    """Why this cannot be called; empty if it can."""
    if name in _BY_OWNER:
        with suppress(Exception):
            ((value,),) = await connection.fetch(_BY_OWNER[name].format(schema="idempotency_gateway"))
            if value is not None:
                return ""
            return await _why_refused(connection, "", query) or "it is to the schema's owner, or was when that was made"
    try:
        await connection.fetch(query)
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is refused
        return str(fault_of(error))
    return ""


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
