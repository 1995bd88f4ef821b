"""The agreement on identity recipes in SQLite, inside a transaction that somebody else began and will end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from gateway.core.identity import derive_operation_id
from gateway.store.base import RecipeConflict
from gateway.store.recipes import compare
from gateway.store.recipes import strays as strays_of
from gateway.store.sqlite_inquiry import PIECE_RECORDS_MAX
from gateway.store.sqlite_statements import Cursor, statements

_LAST_ROW: Final = 2**63 - 1


def agree(
    cursor: Cursor, service: str, recipes: Mapping[str, bytes], accept: frozenset[str], now_us: int
) -> list[RecipeConflict]:
    """Remember the recipes, or find who objects."""
    sql = statements()
    comparison = compare(dict(cursor.execute(sql["select_recipes"]).fetchall()), service, recipes, accept)
    conflicts = comparison.conflicts(_count_alive(cursor, service, comparison.doubtful, now_us))
    if not conflicts:
        for text, recipe in comparison.written.items():
            cursor.execute(sql["upsert_recipe"], (text, recipe))
        for text in comparison.removed:
            cursor.execute(sql["delete_recipe"], (text,))
    return conflicts


def strays(cursor: Cursor, service: str, operations: Collection[str]) -> list[str]:
    """The operation names that are none of these."""
    return strays_of(dict(cursor.execute(statements()["select_recipes"]).fetchall()), service, operations)


def count_some(
    cursor: Cursor, service: str, names: Collection[str], after: int, now_us: int
) -> tuple[dict[str, int], int | None]:
    """The service's living keys by operation name in the next piece after this row, and its last; None at the end."""
    horizon = cursor.execute(statements()["select_horizon_by_row"], (after, PIECE_RECORDS_MAX - 1)).fetchone()
    last = None if horizon is None else horizon[0]
    alive = _count_alive(
        cursor, service, dict.fromkeys(names, True), now_us, after, _LAST_ROW if last is None else last
    )
    return alive, last


def _count_alive(
    cursor: Cursor, service: str, asked: Mapping[str, bool], now_us: int, after: int = 0, last: int = _LAST_ROW
) -> dict[str, int]:
    """The living keys by operation name, where asked those of this service alone; between two rows."""
    alive = {}
    for operation, is_own in asked.items():
        rows = cursor.execute(statements()["select_alive"], (operation, now_us, after, last))
        alive[operation] = sum(
            not is_own or derive_operation_id(service, operation, scope_digest, key_digest).bytes == operation_id
            for operation_id, scope_digest, key_digest in rows
        )
    return alive
