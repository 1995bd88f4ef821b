"""The portable dialect's statements use nothing but what every engine has, as far as its documentation says so."""

from __future__ import annotations

import re
from typing import Final

import pytest

from gateway.store.postgres import statements as hot
from gateway.store.postgres.statements import migrations, portable_texts
from gateway.store.relational.rows import of_many, writes

_TOKEN: Final = re.compile(r"[eE]?'(?:[^']|'')*'|\$\d+|[A-Za-z_][A-Za-z_0-9]*|\d+|::|<=|>=|<>|\|\||[^\s]")
_WORD: Final = re.compile(r"[a-z_][a-z_0-9]*\Z")


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What stands before a parenthesis and is no function.
_SYNTAX: Final = words(
    "all and any as by cast check conflict else exists from in into key lateral not on or over select set table "
    "then values when where"
)
_VOLATILE: Final = words(
    "clock_timestamp gen_random_uuid nextval now random setval statement_timestamp timeofday transaction_timestamp"
)
_FUNCTIONS: Final = words(
    "clock_timestamp coalesce convert_to count encode extract gen_random_uuid greatest "
    "jsonb_array_elements_text left max min position split_part strpos substr sum"
)
# Advisory locks, for one, do nothing on CockroachDB, and are the coordinator's alone on Citus.
_FORBIDDEN: Final = words(
    "alter attach bigserial copy ctid function inherits listen lock materialized merge nextval "
    "notify overriding partition procedure recursive sequence serial share skip tablesample temporary "
    "trigger truncate unlisten unlogged xmin"
)


_TYPES: Final = words("bigint boolean bytea jsonb text")


# Tables whose rows are on many nodes, none of which knows the others' locks: each change and each lock names one row.
ENGINES: Final = {
    "CockroachDB and YugabyteDB": words(""),
    # The other tables stay at the coordinator (docs/configure/stores.md).
    "Citus": words("operation"),
}


def tokens(text: str) -> list[str]:
    text = text.replace("idempotency_gateway.", "")
    return [token if token[0] in "'eE" and "'" in token else token.lower() for token in _TOKEN.findall(text)]


def changed_tables(found: list[str]) -> list[str]:
    """The tables that a statement changes, once for each time."""
    changed = []
    for at, token in enumerate(found):
        before = found[at - 1] if at else ""
        if (
            (token == "into" and before == "insert")
            or (token == "from" and before == "delete")
            or (token == "update" and before not in ("do", "for"))
        ):
            changed.append(found[at + 1])
    return changed


def assigned(found: list[str]) -> list[str]:
    if "set" not in found:
        return []
    rest, depth, behind = found[found.index("set") + 1 :], 0, []
    for token in rest:
        depth += (token == "(") - (token == ")")
        if depth == 0 and token in ("where", "returning"):
            break
        behind.append(token)
    return behind


def faults(text: str, distributed: frozenset[str]) -> list[str]:
    """What is wrong with a statement for an engine that distributes these tables."""
    found = tokens(text)
    wrong = [f"has {token.upper()}" for token in found if token in _FORBIDDEN]
    calls = {
        token
        for token, following in zip(found, [*found[1:], ""], strict=True)
        if following == "(" and _WORD.match(token) and token not in _SYNTAX
    }
    changed = changed_tables(found)
    # A statement may be about many rows, but not where these are on many nodes.
    functions = _FUNCTIONS if distributed & set(found) else _FUNCTIONS | {"unnest"}
    # A table's list of columns, and an alias with columns, look like calls.
    named = {*changed, "i", "k", "o", "e"}
    wrong += [f"calls {call}" for call in sorted(calls - functions - named)]
    wrong += [
        f"casts to {name}" for at, name in enumerate(found) if at and found[at - 1] == "::" and name not in _TYPES
    ]
    wrong += [f"assigns {token}, which is volatile" for token in assigned(found) if token in _VOLATILE]
    if len(changed) > 1:
        wrong.append(f"changes {' and '.join(changed)}")
    if found[0] not in ("select", "insert", "update", "delete"):
        wrong.append(f"begins with {found[0].upper()}")
    is_one_row = re.search(r"\b(o\.)?id = \$\d", text) is not None
    if set(changed) & distributed and found[0] != "insert" and not is_one_row:
        wrong.append(f"changes more than one row of {changed[0]}")
    if "for update" in text.lower() and distributed and not is_one_row:
        wrong.append("locks more than one row")
    if set(changed) & distributed and "select" in found:
        wrong.append(f"reads another table while it changes {changed[0]}")
    return wrong


GENERATED: Final = {
    "insert_absent": hot.hot_text("insert_absent", hot.CLAIM, is_portable=True),
    **{name: of_many(name, [["a value"] * len(write.given)])[0] for name, write in writes(is_numbered=False).items()},
    "replace_granted": hot.hot_text("replace_granted", hot.COMPLETION, is_portable=True),
    "replace_granted, with events": hot.hot_text("replace_granted", hot.COMPLETION, is_portable=True, has_events=True),
}
OF_MANY_ROWS: Final = {
    "begins with WITH",
    "calls unnest",
    "changes operation and witness",
    "changes operation and response and witness",
    "changes operation and response and event and witness",
}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_statement_is_on_the_list(engine: str) -> None:
    """One for many rows may change a table, events and the witness, for as many as its arrays have."""
    texts = portable_texts(is_of_one_row=engine == "Citus")
    wrong = {name: faults(text, ENGINES[engine]) for name, text in texts.items()}
    assert {name: found for name, found in wrong.items() if found} == {}
    # Citus never gets them.
    if engine != "Citus":
        wrong = {name: set(faults(text, ENGINES[engine])) for name, text in GENERATED.items()}
        assert {name: found - OF_MANY_ROWS for name, found in wrong.items() if found - OF_MANY_ROWS} == {}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_tables_are_on_the_list(engine: str) -> None:
    """Tables and indexes of plain types, made by statements that can be repeated; no sequence, trigger or partition."""
    ((_, _, script),) = migrations("portable")
    for each in re.sub(r"(?m)^ *--.*$", "", script).split(";"):
        found = tokens(each)
        if not found:
            continue
        head = " ".join(found[:6]).upper()
        if found[0] == "insert":
            assert faults(each, ENGINES[engine]) == []
            assert "do nothing" in each.lower()
            continue
        assert re.match(r"CREATE (TABLE IF NOT EXISTS|INDEX IF NOT EXISTS|UNIQUE INDEX IF NOT EXISTS?)", head), head
        assert not _FORBIDDEN & set(found)
        # An INTEGER has eight bytes on CockroachDB, and four elsewhere.
        assert not {"numeric", "serial", "smallint", "timestamptz", "uuid", "varchar"} & set(found)
