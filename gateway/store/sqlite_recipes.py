"""The agreement on identity recipes in SQLite, inside transactions that somebody else began and will end.

Living keys are counted by going through all records. That is done in pieces, and never in a transaction that writes:
every command would wait for it.
"""

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

Asked = Mapping[str, bool]
"""The operation names whose living keys are counted: of this service alone, or of all."""


def agree(
    cursor: Cursor,
    service: str,
    recipes: Mapping[str, bytes],
    accept: frozenset[str],
    asked: Asked,
    alive: Mapping[str, int],
) -> list[RecipeConflict] | Asked:
    """Remember the recipes, or return what stands against that: conflicts, or names that have to be asked about first.

    `alive` are the living keys of the names that were `asked` about by now. Without a conflict the list is empty.
    """
    sql = statements()
    comparison = compare(_known(cursor), service, recipes, accept)
    if comparison.doubtful != asked:
        return comparison.doubtful
    conflicts = comparison.conflicts(alive)
    if not conflicts:
        for text, recipe in comparison.written.items():
            cursor.execute(sql["upsert_recipe"], (text, recipe))
        for text in comparison.removed:
            cursor.execute(sql["delete_recipe"], (text,))
    return conflicts


def strays(cursor: Cursor, service: str, operations: Collection[str]) -> Asked:
    """The operation names with a recipe of this service that are none of `operations`."""
    return dict.fromkeys(strays_of(_known(cursor), service, operations), True)


def count_some(
    cursor: Cursor, service: str, asked: Asked, after: int, now_us: int
) -> tuple[Mapping[str, int], int | None]:
    """The living keys by operation name in the next piece after this row, and its last; None at the end."""
    sql = statements()
    horizon = cursor.execute(sql["select_horizon_by_row"], (after, PIECE_RECORDS_MAX - 1)).fetchone()
    last = _LAST_ROW if horizon is None else horizon[0]
    alive = {}
    for operation, is_own in asked.items():
        rows = cursor.execute(sql["select_alive"], (operation, now_us, after, last))
        alive[operation] = sum(
            not is_own or derive_operation_id(service, operation, scope_digest, key_digest).bytes == operation_id
            for operation_id, scope_digest, key_digest in rows
        )
    return alive, None if horizon is None else last


def _known(cursor: Cursor) -> dict[str, bytes]:
    """The recipes, as `recipes` reads them."""
    return dict(cursor.execute(statements()["select_recipes"]).fetchall())
