"""The agreement on identity recipes in SQLite, inside transactions that somebody else began and will end.

Living keys are counted by going through all records. That is done in pieces, and never in a transaction that writes:
every command would wait for it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

from gateway.core.identity.operation_id import derive_operation_id
from gateway.store.base import Agreement, Living, Serving
from gateway.store.recipes import FORGOTTEN_US, RUNNING_US, Name, Remembered, compare
from gateway.store.recipes import strays as strays_of
from gateway.store.sqlite.inquiry import PIECE_RECORDS_MAX
from gateway.store.sqlite.statements import Cursor, statements

_LAST_ROW: Final = 2**63 - 1


def agree(
    cursor: Cursor, serving: Serving, counted: Mapping[Name, Living], now_us: int, *, writes: bool
) -> Agreement | frozenset[Name]:
    """Agree, or return the operations whose living keys have to be counted first.

    `counted` are the living keys of those that were returned before.
    """
    sql = statements()
    window = (serving.gateway_id.bytes, now_us - RUNNING_US, now_us)
    running = set(cursor.execute(sql["select_running"], window).fetchall())
    comparison = compare(_known(cursor), running, serving)
    if comparison.names != counted.keys():
        return comparison.names
    agreement = comparison.agreement(counted)
    if writes and not agreement.conflicts:
        for row in comparison.written:
            cursor.execute(
                sql["upsert_recipe"], (row.service, row.operation, row.recipe, row.routes, int(row.is_current))
            )
        operations = json.dumps(sorted(serving.recipes))
        cursor.execute(sql["upsert_gateway"], (serving.gateway_id.bytes, serving.service, operations, now_us))
        cursor.execute(sql["delete_gateways"], (b"", now_us - FORGOTTEN_US))
    return agreement


def note_running(cursor: Cursor, gateway_id: UUID, now_us: int, *, is_running: bool) -> None:
    """Note that a gateway runs, or that it has stopped."""
    if is_running:
        cursor.execute(statements()["update_gateway"], (gateway_id.bytes, now_us))
    else:
        cursor.execute(statements()["delete_gateways"], (gateway_id.bytes, now_us - FORGOTTEN_US))


def strays(cursor: Cursor, service: str, operations: Collection[str]) -> frozenset[Name]:
    """The operations that this service is remembered to have, but for these."""
    return strays_of(_known(cursor), service, operations)


def count_some(
    cursor: Cursor, names: Collection[Name], after: int, now_us: int
) -> tuple[Mapping[Name, Living], int | None]:
    """The living keys of each operation in the next piece after this row, and its last; None at the end."""
    sql = statements()
    horizon = cursor.execute(sql["select_horizon_by_row"], (after, PIECE_RECORDS_MAX - 1)).fetchone()
    last = _LAST_ROW if horizon is None else horizon[0]
    counted = {}
    for service, operation in names:
        living = Living()
        rows = cursor.execute(sql["select_alive"], (operation, now_us, after, last))
        for operation_id, scope_digest, key_digest, until_us in rows:
            if derive_operation_id(service, operation, scope_digest, key_digest).bytes == operation_id:
                living = joined(living, Living(1, until_us))
        counted[service, operation] = living
    return counted, None if horizon is None else last


def joined(living: Living, others: Living) -> Living:
    """The keys of both."""
    is_open = living.until_us is None or others.until_us is None
    until_us = None if is_open else max(living.until_us or 0, others.until_us or 0)
    return Living(living.keys + others.keys, until_us)


def _known(cursor: Cursor) -> list[Remembered]:
    """The operations, as `recipes` reads them."""
    rows = cursor.execute(statements()["select_recipes"]).fetchall()
    return [
        Remembered(service, operation, recipe, routes, bool(is_current))
        for service, operation, recipe, routes, is_current in rows
    ]
