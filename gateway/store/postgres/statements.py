"""The texts of the Postgres store's statements: the shared ones with qualified names, and its own.

A file under `sql` holds the statements of one subject, each after a line `-- name:`. If a statement uses the time, its
first argument replaces the server's clock (null, except in tests). Nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from gateway.core.lifecycle import LEASE_US_MAX
from gateway.store.level import RECORD_VERSIONS
from gateway.store.operations import RECOVERY_LEASE_US_MAX, WITNESS_KEEP_US
from gateway.store.portable.schema import SCHEMA, texts
from gateway.store.recipes import FORGOTTEN_US
from gateway.store.relational.rows import DELIVERY, NARROW
from gateway.store.relational.statements import RECORD

# Advisory locks are shared by a whole database; the first number is ours ("igw1"), the second the purpose.
_LOCK_SPACE: Final = 0x69677731
MIGRATE_LOCK: Final = f"{_LOCK_SPACE}, 1"
PARTITION_LOCK: Final = f"{_LOCK_SPACE}, 2"
EPOCH_LOCK: Final = f"{_LOCK_SPACE}, 5"

NOW: Final = "coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"

# How much later than it is due a completed record may be checked, so that its entry in the index stays.
CHECK_SLACK_US: Final = 5_000_000
# How many records one step of the walk for lapsed claims reads.
_WALK_RECORDS_MAX: Final = 5_000
# More tokens than all gateways together draw while a statement runs.
_TOKENS_DRAWN_MAX: Final = 200_000
# One statement reads response bodies up to this size, plus the one that exceeds it.
_READ_BYTES_MAX: Final = 4 * 1024 * 1024

# A standby has what was committed before that is acknowledged. `remote_write` is only in that host's memory.
_IS_SYNCHRONOUS: Final = (
    "(current_setting('synchronous_standby_names') <> ''"
    " AND current_setting('synchronous_commit') IN ('on', 'remote_apply'))"
)

# Of the new record `i`, as far as the key of `operation` does not say it.
IS_NOT_NARROW: Final = "NOT EXISTS (SELECT 1 FROM idempotency_gateway.narrow AS n WHERE n.id = i.id)"
# The day of the response of the operation `o`, and by what it is the response `r`.
_DROP_DAY: Final = "idempotency_gateway.drop_day(o.completed_us, o.replay_until_us - o.completed_us)"
_RESPONSE: Final = f"r.token = o.token AND r.drop_day = {_DROP_DAY}"

_MARKS: Final = {
    "{delivery}": ", ".join(f"d.{column}" for column in DELIVERY),
    "{narrow}": ", ".join(NARROW),
    "{narrow of i}": ", ".join(f"i.{column}" for column in NARROW),
    "{response}": _RESPONSE,
    "{drop_day}": _DROP_DAY,
    "{is_synchronous}": _IS_SYNCHRONOUS,
    "{now}": NOW,
    "{record}": RECORD.replace("{row}", "id"),
    "{witness_keep_us}": str(WITNESS_KEEP_US),
    "{read_bytes_max}": str(_READ_BYTES_MAX),
    "{tokens_drawn_max}": str(_TOKENS_DRAWN_MAX),
    "{forgotten_us}": str(FORGOTTEN_US),
    "{record_versions}": f"{RECORD_VERSIONS[0]} AND {RECORD_VERSIONS[-1]}",
    "{recovery_lease_us_max}": str(RECOVERY_LEASE_US_MAX),
    "{check_slack_us}": str(CHECK_SLACK_US),
    "{walk_records_max}": str(_WALK_RECORDS_MAX),
    "{lease_us_max}": str(LEASE_US_MAX),
}

_NAME: Final = "-- name: "
_TABLES: Final = "|".join(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", SCHEMA))
_TABLE: Final = re.compile(rf"\b(FROM|INTO|JOIN|UPDATE) ({_TABLES})\b")


def load(name: str) -> str:
    """The statement of this name, ready to be prepared."""
    return statement_texts()[name]


def qualified(text: str) -> str:
    """The statement with its tables in the schema, because behind a pooler no session keeps a search path."""
    return _TABLE.sub(r"\1 idempotency_gateway.\2", text)


@cache
def statement_texts() -> Mapping[str, str]:
    """All statements by name."""
    shared = texts("= ANY(?::BYTEA[])", "unnest(?::BYTEA[])", _RESPONSE)
    found = {name: qualified(text) for name, text in shared.items()}
    for file in files("gateway.store.postgres").joinpath("sql").iterdir():
        if file.name.endswith(".sql"):
            for part in file.read_text().split(_NAME)[1:]:
                name, _, text = part.partition("\n")
                found[name] = _filled(text.strip())
    return found


def _filled(text: str) -> str:
    for mark, value in _MARKS.items():
        text = text.replace(mark, value)
    return text


def migrations() -> list[tuple[int, str, str]]:
    """Number, name and text of every migration of this program, in order.

    The tables of distributed SQL come first, with the columns that only PostgreSQL has.
    """
    directory = files("gateway.store.postgres").joinpath("sql/migrations")
    names = sorted(file.name for file in directory.iterdir() if file.name.endswith(".sql"))
    texts = [directory.joinpath(name).read_text() for name in names]
    texts[0] = f"{SCHEMA.replace('--postgres: ', '')}\n{texts[0]}"
    return [(int(name[:4]), name.removesuffix(".sql"), text) for name, text in zip(names, texts, strict=True)]
