"""The texts of the statements, by dialect: those that all stores share with qualified names, and their own.

A file under `sql` holds the statements of one subject, each after a line `-- name:`; `common` is of both dialects. If a
statement uses the time, its first argument replaces the server's clock (null, except in tests). Nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final, Literal

from gateway.core.lifecycle import LEASE_US_MAX
from gateway.store.operations import WITNESS_KEEP_US
from gateway.store.relational.rows import DELIVERY, NARROW
from gateway.store.relational.statements import SHARED_TABLES, numbered, statements

Dialect = Literal["postgres", "portable"]
"""`store.dialect`: what PostgreSQL has, or what it has in common with CockroachDB, YugabyteDB and Citus."""

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

# Of the new record `i`, in either table. The key of `operation` alone would not do: while a record moves to `narrow`,
# whoever waits for its row finds it gone, with a snapshot in which the other row is not there yet. That snapshot has
# the first one (`Horizon`).
IS_NEW: Final = "NOT EXISTS (SELECT 1 FROM idempotency_gateway.operation AS n WHERE n.id = i.id)"
# The day of the response of the operation `o`, and by what it is the response `r`.
_DROP_DAY: Final = "idempotency_gateway.drop_day(o.completed_us, o.replay_until_us - o.completed_us)"
_RESPONSE: Final = f"r.token = o.token AND r.drop_day = {_DROP_DAY}"

_WORDS: Final = {
    "response": "r.row = o.id",
    "delivery of d": ", ".join(f"d.{column}" for column in DELIVERY),
    "narrow": ", ".join(NARROW),
    "narrow of i": ", ".join(f"i.{column}" for column in NARROW),
    "drop_day": _DROP_DAY,
    "is_synchronous": _IS_SYNCHRONOUS,
    "now": NOW,
    "witness_keep_us": str(WITNESS_KEEP_US),
    "read_bytes_max": str(_READ_BYTES_MAX),
    "tokens_drawn_max": str(_TOKENS_DRAWN_MAX),
    "check_slack_us": str(CHECK_SLACK_US),
    "walk_records_max": str(_WALK_RECORDS_MAX),
    "lease_us_max": str(LEASE_US_MAX),
}

_SQL: Final = files("gateway.store.postgres").joinpath("sql")
SCHEMA: Final = re.sub(r" --sqlite:.*", "", SHARED_TABLES)
"""The first schema, with its comments."""
_TABLES: Final = "|".join(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", SCHEMA))
_TABLE: Final = re.compile(rf"\b(FROM|INTO|JOIN|UPDATE) ({_TABLES})\b")


@cache
def qualified(text: str) -> str:
    """The statement with its tables in the schema, because behind a pooler no session keeps a search path."""
    return _TABLE.sub(r"\1 idempotency_gateway.\2", text)


@cache
def portable_texts(*, is_of_one_row: bool = False) -> Mapping[str, str]:
    """The statements in what the engines have in common. `is_of_one_row`: each is about one row, where those of a table
    are on many nodes."""
    keys = ("= ?", "(SELECT ?::BYTEA)") if is_of_one_row else _MANY
    return _texts(("common", "portable"), *keys)


@cache
def statement_texts() -> Mapping[str, str]:
    """PostgreSQL's."""
    subjects = ("common", "backlog", "member", "memory", "read", "schema", "sweep")
    return _texts(subjects, *_MANY, response=_RESPONSE)


_EACH: Final = "jsonb_array_elements_text(?::TEXT::JSONB)"
_MANY: Final = ("= ANY(?::BYTEA[])", "unnest(?::BYTEA[])")


def _texts(names: Sequence[str], among: str, keys: str, **more: str) -> dict[str, str]:
    """The statements of these files and those that all stores share, with what compares a column with keys, and these
    as rows."""
    own = {}
    for each in names:
        for part in _SQL.joinpath(f"{each}.sql").read_text("utf-8").split("-- name: ")[1:]:
            name, _, text = part.partition("\n")
            own[name] = text
    words = {"row": "id", "row_of": "?", "greatest": "greatest", "join": "JOIN", "among": among, "keys": keys}
    words |= {"locked": "FOR UPDATE", "bytes": "BYTEA", "each": _EACH}
    found = statements(own, {**words, **_WORDS, **more})
    return {name: qualified(numbered(text)) for name, text in found.items()}


def load(name: str) -> str:
    """PostgreSQL's statement of this name."""
    return statement_texts()[name]


def migrations(dialect: Dialect) -> list[tuple[int, str, str]]:
    """Number, name and text of every migration of this program, in order.

    PostgreSQL's first one begins with the tables of the other dialect, with the columns that only PostgreSQL has.
    """
    found = _scripts("tables" if dialect == "portable" else "migrations")
    number, name, text = found[0]
    found[0] = (number, name, SCHEMA if dialect == "portable" else f"{SCHEMA.replace('--postgres: ', '')}\n{text}")
    return found


def _scripts(folder: str) -> list[tuple[int, str, str]]:
    scripts = sorted(
        (file.name.removesuffix(".sql"), file.read_text("utf-8")) for file in _SQL.joinpath(folder).iterdir()
    )
    return [(int(name[:4]), name, text) for name, text in scripts]
