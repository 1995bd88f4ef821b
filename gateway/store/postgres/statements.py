"""The texts of the statements, by dialect: those that all stores share, with qualified names, and its own.

A file under `sql` holds the statements of one subject, each after a line `-- name:`; `common` is of both dialects. If a
statement uses the time, its first argument replaces the server's clock (null, except in tests). Nothing here does I/O.

*A hot verb* is one statement in a transaction of its own, generated from the columns: a claim of a key that has no
record, and the completion of a claim by the record as it was granted. It is given what the commands have, and writes
what `step` would: the clock, the token and what is the same for all of them are in its text. A command that is not
among the rows that it returns changed nothing. The driver encodes each element of an array, so a value that is equal
for all is sent once, and a column of nulls is not sent at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from operator import itemgetter
from typing import Any, Final, Literal

from gateway.core.lifecycle import LEASE_US_MAX, no_token, step
from gateway.core.operation import Claim, Command, Complete, Result
from gateway.core.outbox import Outbox
from gateway.store.agreement import RECORD_VERSION, RECORD_VERSIONS
from gateway.store.operations import BACKLOG_COUNT_MAX, WITNESS_KEEP_US
from gateway.store.relational.rows import (
    COLUMNS,
    COMPLETED,
    DELIVERY,
    NARROW,
    SHARED_TABLES,
    Row,
    encode,
    numbered,
    statements,
    texts_of,
    type_of,
)

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
    # The next claims of the walk for lapsed ones.
    "walk": (
        "idempotency_gateway.epoch AS e CROSS JOIN LATERAL (SELECT w.* FROM ONLY idempotency_gateway.operation AS w "  # noqa: S608
        f"WHERE w.token > e.passed_token ORDER BY w.token LIMIT {_WALK_RECORDS_MAX})"
    ),
    "backlog_count_max": str(BACKLOG_COUNT_MAX),
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
    words = {"row": "id", "row_of": "?", "greatest": "greatest", "join": "JOIN", "among": among, "keys": keys}
    words |= {"locked": "FOR UPDATE", "bytes": "BYTEA", "each": _EACH}
    found = statements(texts_of("gateway.store.postgres", names), {**words, **_WORDS, **more})
    return {name: qualified(numbered(text)) for name, text in found.items()}


def load(name: str) -> str:
    """PostgreSQL's statement of this name."""
    return statement_texts()[name]


def migrations(dialect: Dialect) -> list[tuple[int, str, str]]:
    """Number, name and text of every migration of this program, in order. PostgreSQL's first one begins with the tables
    of the other dialect, with the columns that only PostgreSQL has."""
    folder = _SQL.joinpath("tables" if dialect == "portable" else "migrations")
    scripts = sorted((file.name.removesuffix(".sql"), file.read_text("utf-8")) for file in folder.iterdir())
    found = [(int(name[:4]), name, text) for name, text in scripts]
    number, name, text = found[0]
    found[0] = (number, name, SCHEMA if dialect == "portable" else f"{SCHEMA.replace('--postgres: ', '')}\n{text}")
    return found


# -- hot verbs ---------------------------------------------------------------------------------------------------------

# What the statement itself writes of a new claim, and of a completion. What is empty follows from what is given.
_CLAIMED: Final = {
    "version": str(RECORD_VERSION), "state": "'claimed'", "last_event": "'claim'", "attempts": "1",
    "first_claimed_us": "s.now_us", "claimed_us": "s.now_us", "replay_until_us": "0", "remember_until_us": "0",
    "body_kept": "FALSE", "request_kept": "FALSE", "token": "", "lease_until_us": "", "due_us": "",
}  # fmt: skip
_COMPLETED: Final = {
    "version": str(RECORD_VERSION), "state": "'completed'", "last_event": "'complete'", "carried_us": "NULL",
    "lease_until_us": "0", "lease_us": "0", "completed_us": "s.now_us", "doubt": "NULL", "resolution_id": "NULL",
    "body_kept": "", "due_us": "",
}  # fmt: skip
# What a claim, and a completion, is given: these columns of the record that `step` makes of it at the time 0, the id
# first. Columns of which none has a value are left out, and so is what a claim has not that is of a completion.
_UNCLAIMED: Final = frozenset(COMPLETED) - {"lease_us", "sealed_by"}
CLAIM: Final = tuple(each for each in COLUMNS if each not in _UNCLAIMED.union(_CLAIMED))
_COMPLETING: Final = ("id", "token", "attempt_id", *(each for each in COMPLETED if each not in _COMPLETED))
COMPLETION: Final = (*_COMPLETING, "body")
_of_claim: Final = itemgetter(*map(COLUMNS.index, CLAIM))
_of_completion: Final = itemgetter(*map(COLUMNS.index, _COMPLETING))
# Those that often are equal for all, and never null.
_SHARED: Final = frozenset(
    ("holder", "route", "operation", "scope_digest", "fingerprint_recipe", "fingerprint_key_id", "lease_us", "request",
     "replay_until_us", "remember_until_us", "status", "reason", "expected_us")
)  # fmt: skip

_EVENT: Final = ("BYTEA[]", "TEXT", "TEXT[]", "TEXT[]", "TEXT[]", "BYTEA[]", "BYTEA[]")
# What is raised and returned, of `changed`.
_RESULT: Final = """raised AS (
    UPDATE witness SET number = number + 1 WHERE link = $2::BYTEA AND EXISTS (SELECT 1 FROM changed) RETURNING number
)
SELECT c.now_us, c.id, c.token, (SELECT r.number FROM raised AS r) FROM changed AS c
UNION ALL SELECT s.now_us, NULL, NULL, (SELECT r.number FROM raised AS r) FROM state AS s"""

Verb = Literal["insert_absent", "replace_granted"]


def is_absent_claim(command: Command) -> bool:
    """Whether the command may be a claim of a key without a record, about which nothing else has to be read."""
    return type(command) is Claim and command.read_token is None and command.content is None


def is_granted_completion(command: Command) -> bool:
    """Whether the command is a completion that changes the record as it was granted, and nothing else but events."""
    if type(command) is not Complete or (granted := command.granted) is None:
        return False
    is_holder = (granted.token, granted.attempt_id) == (command.token, command.attempt_id)
    return is_holder and granted.delivery is None


def given_of(verb: Verb, commands: Sequence[Any], more: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """What the statement is given of these commands, by column, the id first; and more, that they do not have."""
    names, row_of = (CLAIM, _row_of_claim) if verb == "insert_absent" else (COMPLETION, _row_of_completion)
    given: dict[str, Any] = {}
    columns = zip(names, zip(*map(row_of, commands), strict=True), strict=True)
    for name, column in (*columns, *more.items()):
        if name in _SHARED:
            given[name] = column[:1] if column.count(column[0]) == len(column) else column
        elif column.count(None) < len(column):
            given[name] = column
    return given


def _row_of_claim(claim: Claim) -> Row:
    record: Any = step(None, claim, 0, int)[1]
    row: Row = _of_claim(encode(record))
    return row


def _row_of_completion(command: Complete) -> Row:
    record: Any = step(command.granted, command, 0, no_token)[1]
    return (*_of_completion(encode(record)), command.response.body)


@cache
def hot_text(verb: Verb, names: tuple[str, ...], *, is_portable: bool = False, has_events: bool = False) -> str:
    """The statement for these columns, those that any of the commands has, and with what is written of events."""
    first = 5 if is_portable else 3
    given = {
        name: f"coalesce(i.{name}, (${place}::{type_of(name)}[])[1])" if name in _SHARED else f"i.{name}"
        for place, name in enumerate(names, first)
    }
    claimed, completed = dict[str, str](), dict[str, str]()
    if verb == "insert_absent":
        lease_until = f"s.now_us + {given['lease_us']}"
        claimed = {**given, **_CLAIMED, "lease_until_us": lease_until, "due_us": lease_until}
        del claimed["token"]
        if "expected_us" in given:
            claimed["expected_us"] = f"s.now_us + {given['expected_us']}"
    else:
        given = dict.fromkeys(COMPLETION, "NULL") | given
        until = {each: f"s.now_us + {given[each]}" for each in ("replay_until_us", "remember_until_us")}
        derived = {
            **_COMPLETED,
            **until,
            "due_us": until["replay_until_us"],
            "body_kept": f"{given['body']} IS NOT NULL",
        }
        completed = {each: derived.get(each) or given[each] for each in COMPLETED}
    arrays = ", ".join(f"${place}::{type_of(each)}[]" for place, each in enumerate(names, first))
    parts = {
        "columns": ", ".join(claimed),
        "values": ", ".join(claimed.values()),
        "changes": ", ".join(f"{column} = {value}" for column, value in completed.items()),
        "given": f"unnest({arrays}) WITH ORDINALITY AS i ({', '.join(names)}, place)",
        "body": "i.body" if "body" in names else "NULL::BYTEA",
        "events": _events(first + len(names)) if has_events else "",
        "result": _RESULT,
        "now": NOW,
        "is_new": IS_NEW,
        "record_versions": f"{RECORD_VERSIONS[0]} AND {RECORD_VERSIONS[-1]}",
    }
    text = texts_of("gateway.store.postgres", ("hot_portable" if is_portable else "hot",))[verb]
    return qualified(re.sub(r"--.*\n", "", text).format_map(parts))


def _events(first: int) -> str:
    arrays = ", ".join(f"${place}::{kind}" for place, kind in enumerate(_EVENT, first) if kind != "TEXT")
    return f"""written AS (
    INSERT INTO event (row, service, sink, event_id, type, at_us, since_us, due_us, content, response)
    SELECT convert_to(e.event_id || ' ' || e.sink, 'UTF8'), ${first + 1}::TEXT, e.sink, e.event_id, e.type,
        c.now_us, c.now_us, c.now_us, e.content, e.response
    FROM changed AS c JOIN unnest({arrays}) AS e (id, sink, event_id, type, content, response) ON e.id = c.id
    ON CONFLICT (row) DO NOTHING
), """  # noqa: S608


def events_of(outbox: Outbox, commands: Sequence[Command]) -> list[Any]:
    """What a statement is given of the events of these commands, if they take effect, none of them in a line; nothing
    for none. All that it can change of a record is as it was granted."""
    rows: list[Row] = []
    if outbox.subscriptions:
        for command in commands:
            if isinstance(command, Complete) and (before := command.granted) is not None:
                events = outbox.rows(before, step(before, command, 0, no_token)[1])
                front = (command.operation_id.bytes,)
                rows += [(*front, each.sink, each.event_id, each.type, each.content, each.response) for each in events]
    if not rows:
        return []
    ids, *others = (list(column) for column in zip(*rows, strict=True))
    return [ids, outbox.service, *others]


def granted(command: Command, token: int, now_us: int) -> Result:
    """The result of a command that a statement executed then."""
    before = command.granted if type(command) is Complete else None
    if before is not None and before.lease_until_us <= now_us:
        # It was renewed, or the statement had not changed it.
        before = replace(before, lease_until_us=now_us + 1)
    return step(before, command, now_us, token.__int__)[0]
