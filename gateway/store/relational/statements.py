"""The statements: loaded from `.sql` files, and generated from the names of columns where they write rows as given.

The files have placeholders for columns. Those that are generated `Cursor.change_all` executes, for one row or for many;
for many they have an array for each column in which any row has a value, and are PostgreSQL's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import count
from types import MappingProxyType
from typing import Any, Final, Literal

from gateway.core.lifecycle import STEP_US
from gateway.core.operation import SHORT_DIGEST_BYTES
from gateway.store.agreement import EVENT_TYPES, RECORD_VERSIONS
from gateway.store.operations import ACTIVITY_AHEAD_US, AHEAD_MAX, EVENT_LEASE_US_MAX, RECOVERY_LEASE_US_MAX
from gateway.store.relational.rows import (
    CHANGED,
    COLUMNS,
    COMPLETED,
    DELIVERY,
    DELIVERY_CHANGED,
    DELIVERY_INSERTED,
    KIND,
    KINDS_MAX,
    NARROW,
    NARROW_NULLS,
    RESEALED,
)
from gateway.store.sealed import SEALED, Place

RECORD: Final = ", ".join(f"o.{column}" for column in ("{row}", *COLUMNS, "kind"))
_PLACEHOLDERS: Final = {
    # For the table alias `o`. The body, or NULL, has to follow.
    "{record}": RECORD,
    "{kind}": ", ".join(KIND),
    # Of what claimed the content `c`, as far as the operation `o` has it.
    "{fingerprint of c}": (
        f"CASE WHEN o.kind IS NULL THEN c.fingerprint ELSE substr(c.fingerprint, 1, {SHORT_DIGEST_BYTES}) END"
    ),
    "{kinds_max}": str(KINDS_MAX),
    "{completed}": ", ".join(f"{column} = ?" for column in COMPLETED),
    "{resealed}": ", ".join(f"{column} = ?" for column in RESEALED),
    # A narrow row has no request.
    "{as sealed before}": " AND ".join(
        "coalesce(request, '') = ?" if column == "request" else f"{column} IS NOT DISTINCT FROM ?"
        for column in RESEALED[:-1]
    ),
    "{record_versions}": f"{RECORD_VERSIONS[0]} AND {RECORD_VERSIONS[-1]}",
    "{event_types}": EVENT_TYPES,
    "{event_lease_us_max}": str(EVENT_LEASE_US_MAX),
    "{recovery_lease_us_max}": str(RECOVERY_LEASE_US_MAX),
    "{ahead_max}": str(AHEAD_MAX),
    "{activity_ahead_us}": str(ACTIVITY_AHEAD_US),
    "{step_us}": str(STEP_US),
    "{delivery}": ", ".join(DELIVERY),
}


SHARED_TABLES: Final = files("gateway.store").joinpath("postgres/sql/tables/0001_portable.sql").read_text("utf-8")
"""The tables of all stores, as distributed SQL has them, with what SQLite has instead."""


def statements(own: Mapping[str, str], words: Mapping[str, str]) -> Mapping[str, str]:
    """The statements by their names: those that are generated, those in files that all dialects share, and a dialect's
    own. Without comments, because drivers cache statements by their text.

    The dialect's `words` are `row`, the column that identifies an operation here, and `row_of`, its value for an id;
    `greatest`, the function with the greater of two values; `join`, which joins tables in the order in which they are
    named; `response`, by which `r` is the response of the operation `o`; `locked`, which locks what is read; `bytes`,
    the type; `each`, the rows with a `value` each of a list (JSON) of texts; `among`, which compares a column with the
    keys of `Cursor.among`; and `keys`, these as rows, where there can be many. A text with `{key}` is about one key.
    """
    placeholders = _PLACEHOLDERS | {f"{{{name}}}": word for name, word in words.items()}
    made = writes(is_numbered=words["row"] != "id")
    found = {name: of_one(write, words["row_of"]) for name, write in made.items()}
    for name, text in {**texts_of(__package__), **own}.items():
        found[name] = _bare(text, placeholders, words.get("keys"))
    return found | {name: _bare(text, placeholders, None) for name, text in _rekeying_texts().items()}


def texts_of(package: str, subjects: Collection[str] = ()) -> dict[str, str]:
    """The statements in the folder `sql` of a package, by their names: those in the files of these subjects, each after
    a line `-- name:`, or in all files. One without such a line is a script of its name."""
    found: dict[str, str] = {}
    for file in files(package).joinpath("sql").iterdir():
        subject = file.name.removesuffix(".sql")
        if file.is_file() and (not subjects or subject in subjects):
            script, *texts = file.read_text("utf-8").split("-- name: ")
            found |= {text.split(None, 1)[0]: text.partition("\n")[2] for text in texts} or {subject: script}
    return found


_PARAMETER: Final = re.compile(r"\?(\d*)")
_EACH: Final = re.compile(r"\{each of ([\w.?]+)\}")


def numbered(text: str) -> str:
    numbers = count(1)
    return _PARAMETER.sub(lambda found: f"${found.group(1) or next(numbers)}", text)


def _bare(text: str, placeholders: Mapping[str, str], keys: str | None) -> str:
    lines = (line.strip() for line in text.splitlines())
    bare = " ".join(line for line in lines if not line.startswith("--"))
    for name, columns in placeholders.items():
        bare = bare.replace(name, columns)
    bare = _EACH.sub(lambda found: placeholders["{each}"].replace("?", found.group(1)), bare)
    if keys is None or "{key}" not in bare:
        return bare.replace("{key}", "?1")
    return f"SELECT f.* FROM {keys} AS k (key) CROSS JOIN LATERAL ({bare.replace('{key}', 'k.key')}) AS f"  # noqa: S608


# -- generated ---------------------------------------------------------------------------------------------------------

_TABLE: Final = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+) \((.*?)^\)", re.DOTALL | re.MULTILINE)
_COLUMN: Final = re.compile(r"^    (?:--postgres: )?(\w+) (BIGINT|BOOLEAN|BYTEA|INTEGER|TEXT)\b", re.MULTILINE)
_TYPES: Final[Mapping[tuple[str, str], str]] = {
    (table, column): kind.replace("INTEGER", "BIGINT")
    for table, columns in _TABLE.findall(SHARED_TABLES)
    for column, kind in _COLUMN.findall(columns)
}


def type_of(column: str, table: str = "operation") -> str:
    """The type of a column of this table in PostgreSQL, or else of a response."""
    return _TYPES.get((table, column)) or _TYPES["response", column]


@dataclass(frozen=True)
class Write:
    """A statement that is given values of `columns` and then of `keys`, by which an existing row is found. `nulls` are
    set to NULL, `values` are expressions of what is given, by column."""

    verb: Literal["insert", "update", "delete"]
    table: str
    columns: Sequence[str] = ()
    keys: Sequence[str] = ()
    nulls: Sequence[str] = ()
    conflict: str = ""
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def given(self) -> tuple[str, ...]:
        return (*self.columns, *self.keys)


def writes(*, is_numbered: bool) -> dict[str, Write]:
    """The statements by their names, for a store that numbers its rows or not."""
    event = ("service", "sink", "event_id", "type", "at_us", "since_us", "due_us", "content", "response")
    found = {
        # absent --claim--> claimed, absent --accept--> accepted; does nothing if there is a record
        "insert_operation": Write("insert", "operation", COLUMNS, conflict="(id) DO NOTHING"),
        # every row that leaves a record: the record that the table returned, in the transaction that locked the old one
        "update_operation": Write("update", "operation", COLUMNS[CHANGED:], ("id",)),
        # no row of the table: what a probe found that changed nothing
        "update_history": Write("update", "operation", ("history",), ("id",)),
        # completed --retire--> tombstone: the record as a narrow row
        "narrow_operation": Write("update", "operation", NARROW, ("id",), nulls=NARROW_NULLS),
        # released | tombstone --collect | erase--> absent
        "delete_operation": Write("delete", "operation", keys=("id",)),
        # absent | released --accept--> accepted: what is known of the kept request
        "insert_delivery": Write("insert", "delivery", DELIVERY_INSERTED, ("row",)),
        # every row that leaves a kept request, and accepted --expire--> dead_letter
        "update_delivery": Write("update", "delivery", DELIVERY_CHANGED, ("row",)),
        # claimed | in_doubt | accepted | dead_letter --complete--> completed, in_doubt --prove--> completed,
        # in_doubt --disprove--> released, accepted | dead_letter --withdraw--> released
        "delete_delivery": Write("delete", "delivery", keys=("row",)),
        # no row of the table: whether another operation of its lane goes first
        "give_turn": Write("update", "delivery", ("is_behind",), ("row",)),
        # as the three before it: the encrypted request
        "insert_request": Write("insert", "request", ("key_id", "sealed"), ("row",)),
        "delete_request": Write("delete", "request", keys=("row",)),
        # every row that leads to completed, and those that leave it: the response body
        "insert_response": Write("insert", "response", ("body",), ("row",)),
        "delete_response": Write("delete", "response", keys=("row",)),
        # no row of the table: an operation claimed a content
        "upsert_content": Write(
            "insert",
            "content",
            ("digest", "id", "fingerprint", "until_us", "check_us"),
            conflict="(digest, id) DO UPDATE SET fingerprint = excluded.fingerprint, until_us = excluded.until_us, "
            "check_us = excluded.check_us",
        ),
    }
    if is_numbered:
        # no row of the table: an event for a sink without order. Written before: the same event.
        found["insert_event"] = Write("insert", "event", event, conflict="(event_id, sink) DO NOTHING")
    else:
        row = MappingProxyType({"row": "convert_to({event_id} || ' ' || {sink}, 'UTF8')"})
        found["insert_event"] = Write("insert", "event", event, conflict="(row) DO NOTHING", values=row)
    return found


def of_one(write: Write, row_of: str) -> str:
    """The statement for one row; `row_of` is the value of the column `row` by the id of its operation."""
    table = write.table
    where = " AND ".join(f"{key} = {row_of if key == 'row' else '?'}" for key in write.keys)
    if write.verb == "delete":
        return f"DELETE FROM {table} WHERE {where}"  # noqa: S608
    if write.verb == "update":
        return f"UPDATE {table} SET {_set(write, dict.fromkeys(write.columns, '?'))} WHERE {where}"  # noqa: S608
    places = {each: f"?{place}" for place, each in enumerate(write.given, 1)}
    values = [row_of.replace("?", place) if each == "row" else place for each, place in places.items()]
    values += (value.format_map(places) for value in write.values.values())
    names = ", ".join((*write.given, *write.values))
    return f"INSERT INTO {table} ({names}) VALUES ({', '.join(values)}){_conflict(write)}"  # noqa: S608


@cache
def _of_many(name: str, given: frozenset[str]) -> str:
    write = _UNNUMBERED[name]
    columns = [each for each in write.given if each in given]
    arrays = ", ".join(f"${place}::{type_of(each, write.table)}[]" for place, each in enumerate(columns, 1))
    rows = f"unnest({arrays}) AS i ({', '.join(columns)})"
    if write.verb == "insert":
        places = {each: f"i.{each}" for each in columns}
        values = ", ".join((*places.values(), *(value.format_map(places) for value in write.values.values())))
        names = ", ".join((*columns, *write.values))
        # In one order everywhere, or two that insert the same rows could wait for one another.
        order = f"ORDER BY i.{columns[-1] if write.keys else columns[0]}"
        return f"INSERT INTO {write.table} ({names}) SELECT {values} FROM {rows} {order}{_conflict(write)}"  # noqa: S608
    (key,) = write.keys
    # By it, no plan reads others.
    named = f"o.{key} = ANY(${columns.index(key) + 1}::{type_of(key)}[])"
    if write.verb == "delete":
        return f"DELETE FROM {write.table} AS o WHERE {named}"  # noqa: S608
    values_of = {each: f"i.{each}" if each in given else "NULL" for each in write.columns}
    return (
        f"UPDATE {write.table} AS o SET {_set(write, values_of)} FROM {rows} "  # noqa: S608
        f"WHERE o.{key} = i.{key} AND {named}"
    )


def of_many(name: str, rows: Sequence[Sequence[Any]]) -> tuple[str, list[Sequence[Any]]]:
    """The statement for these rows in a store that does not number them, and its arrays: the columns in which any has a
    value."""
    columns = zip(_UNNUMBERED[name].given, zip(*rows, strict=True), strict=True)
    given = {name: column for name, column in columns if any(value is not None for value in column)}
    return _of_many(name, frozenset(given)), list(given.values())


def _set(write: Write, values: Mapping[str, str]) -> str:
    return ", ".join(f"{each} = {value}" for each, value in {**values, **dict.fromkeys(write.nulls, "NULL")}.items())


def _conflict(write: Write) -> str:
    return f" ON CONFLICT {write.conflict}" if write.conflict else ""


_UNNUMBERED: Final = writes(is_numbered=False)
WRITTEN: Final = frozenset(_UNNUMBERED)
"""The names of those that `of_many` has."""


# -- what is encrypted again -------------------------------------------------------------------------------------------

_REQUEST: Final = "request AS r {join} operation AS o ON o.{row} = r.row {join} delivery AS d ON d.row = r.row"
# Where the rows of a place are, the columns that order them with what is below the first (None: `Cursor.first_row`),
# and what their values are bound to.
REKEYED: Final[Mapping[Place, tuple[str, tuple[str, ...], tuple[Any, ...] | None, tuple[str, ...]]]] = {
    Place.REQUESTS: (_REQUEST, ("r.row",), None, ("o.id", "d.acceptance_id")),
    Place.AUDITS: ("audit", ("row",), (0,), ("id", "event", "token")),
    Place.PAUSES: ("pause", ("service", "operation"), ("", ""), SEALED[Place.PAUSES].about),
    Place.PAUSE_AUDITS: ("pause_audit", ("row",), (0,), SEALED[Place.PAUSE_AUDITS].about),
    Place.SUSPENSIONS: ("suspension", ("service", "sink"), ("", ""), SEALED[Place.SUSPENSIONS].about),
    Place.EVENTS: ("event", ("row",), None, SEALED[Place.EVENTS].about),
}
# The columns with the ids of keys that something of a row is encrypted with, each with an index.
_KEY_IDS: Final = (
    ("operation", "sealed_by"), ("request", "key_id"), ("audit", "sealed_by"), ("pause", "sealed_by"),
    ("pause_audit", "sealed_by"), ("suspension", "sealed_by"), ("event", "sealed_by"), ("event", "why_sealed_by"),
)  # fmt: skip
_COUNTED: Final = " UNION ALL ".join(
    f"SELECT 1 FROM (SELECT 1 FROM {table} AS t WHERE t.{column} = ?1 LIMIT ?2) AS t{place}"  # noqa: S608
    for place, (table, column) in enumerate(_KEY_IDS)
)
_NEXT: Final = " UNION ALL ".join(
    f"SELECT (SELECT t.{column} FROM {table} AS t WHERE t.{column} > ?1 ORDER BY t.{column} LIMIT 1) AS key_ids"  # noqa: S608
    for table, column in _KEY_IDS
)


def _rekeying_texts() -> dict[str, str]:
    """The statements that read pages of each place, and replace values, by their names; and those that find what is
    encrypted with which keys, from indexes alone, but of small tables."""
    found = {
        # no row of the table: how many rows are encrypted with these keys, of each column up to a bound
        "count_sealed": f"SELECT count(*) FROM ({_COUNTED}) AS counted",  # noqa: S608
        # no row of the table: the next ids of keys that rows are encrypted with, each set of them once
        "select_next_sealed": f"SELECT min(n.key_ids) FROM ({_NEXT}) AS n",  # noqa: S608
    }
    for place, (source, keys, _, about) in REKEYED.items():
        values, table = SEALED[place].values, source.partition(" ")[0]
        named, places = ", ".join(keys), ", ".join("?" for _ in keys)
        found[f"select_{place}_to_rekey"] = (
            # no row of the table: rows in their order
            f"SELECT {', '.join((*keys, *about, *values))} FROM {source} "  # noqa: S608
            f"WHERE ({named}) > ({places}) ORDER BY {named} LIMIT ?"
        )
        given = ", ".join(f"{each} = ?" for each in values)
        as_read = [f"{each.removeprefix('r.')} = ?" for each in keys]
        as_read += (f"{each} IS NOT DISTINCT FROM ?" for each in values)
        # no row of the table: the same values under another key, if they are as they were read
        found[f"reseal_{place}"] = f"UPDATE {table} SET {given} WHERE {' AND '.join(as_read)}"  # noqa: S608
    return found
