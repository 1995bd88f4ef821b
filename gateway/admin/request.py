"""What is asked of the admin port: query strings and JSON bodies as values.

Whatever the port does not know ends the request with a problem that says what it does know. Every function here may
raise `Declined`, which carries that problem.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl
from uuid import UUID

from aiohttp import web

from gateway.admin.answer import AnswerRefused, answer_of
from gateway.admin.documents import Declined, problem
from gateway.admin.journal import REFUSED, WAITING
from gateway.admin.operations import PAGE_SIZE_MAX, audit_by
from gateway.admin.resolution import Happened, NothingHappened, Ruling
from gateway.config.unit import duration_seconds
from gateway.core.operation import Audit, State, microseconds
from gateway.store.operations import Query

_PAGE_SIZE: Final = 100


def check_method(method: str, request: web.BaseRequest) -> None:
    """Only this method is answered on the path of the request."""
    if request.method != method:
        raise Declined(problem(405, "method", f"Only {method} is answered here.", {"Allow": method}))


def operation_id_of(text: str) -> UUID:
    """The id of an operation, from the path or from a query."""
    try:
        return UUID(text)
    except ValueError:
        _malformed("expected the id of an operation")


# -- query strings ----------------------------------------------------------------------------------------------------


def query_of(text: str) -> Query:
    """The query of a list; the states in doubt if none is asked for."""
    asked = _asked(text, "state", "route", "older_than", "after", "limit")
    age_seconds = duration_seconds(asked["older_than"][0]) if "older_than" in asked else 0.0
    if age_seconds is None:
        _malformed("older_than is a duration such as 30s, 5m, 12h or 7d")
    return Query(
        states=_states_of(asked.get("state", [State.IN_DOUBT.value])),
        routes=frozenset(asked["route"]) if "route" in asked else None,
        age_us=microseconds(age_seconds),
        after=operation_id_of(asked["after"][0]) if "after" in asked else None,
        limit=_limit_of(asked),
    )


def journal_query_of(text: str) -> tuple[bool | None, int]:
    """Of the journal: whether only refused outcomes are asked for, or only waiting ones; and how many at most."""
    asked = _asked(text, "state", "limit")
    states = set(asked.get("state", ()))
    if not states <= {WAITING, REFUSED}:
        _malformed(f"state is {WAITING} or {REFUSED}")
    return (states == {REFUSED} if len(states) == 1 else None), _limit_of(asked)


def _asked(text: str, *names: str) -> dict[str, list[str]]:
    """The members of a query, of which only these are known."""
    asked: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=64)
    except ValueError:
        _malformed("the query string is malformed")
    for name, value in pairs:
        asked.setdefault(name, []).append(value)
    check_names(asked, *names)
    for name in ("older_than", "after", "limit"):
        if len(asked.get(name, ())) > 1:
            _malformed(f"{name} is given more than once")
    return asked


def _limit_of(asked: Mapping[str, list[str]]) -> int:
    limit = asked.get("limit", [str(_PAGE_SIZE)])[0]
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 4 and 1 <= int(limit) <= PAGE_SIZE_MAX):
        _malformed(f"limit is a whole number from 1 to {PAGE_SIZE_MAX}")
    return int(limit)


def _states_of(names: list[str]) -> frozenset[State]:
    states = {state.value: state for state in State if state is not State.ABSENT}
    if names == ["all"]:
        return frozenset(states.values())
    if not set(names) <= set(states):
        _malformed(f"state is one of {', '.join(states)}, or all")
    return frozenset(states[name] for name in names)


# -- bodies -----------------------------------------------------------------------------------------------------------


async def body_of(request: web.BaseRequest, bytes_max: int) -> Mapping[str, Any]:
    """The body, which is a JSON object."""
    is_plain = request.headers.get("Content-Encoding", "identity") == "identity"
    if request.content_type != "application/json" or not is_plain:
        raise Declined(problem(415, "unsupported", "Send application/json, without a content coding."))
    parts, size = [], 0
    async for part in request.content.iter_any():
        size += len(part)
        if size > bytes_max:
            response = problem(413, "too-large", f"The limit is {bytes_max} bytes.")
            response.force_close()
            raise Declined(response)
        parts.append(part)
    try:
        asked = json.loads(b"".join(parts), object_pairs_hook=_object)
    except (ValueError, RecursionError):
        _malformed("the body is not JSON, or names a member twice")
    if not isinstance(asked, dict):
        _malformed("the body is not a JSON object")
    return asked


def ruling_of(asked: Mapping[str, Any]) -> Ruling:
    """What the operator says became of the operation."""
    completed, never = asked.get("completed"), flag(asked, "never_happened")
    if (completed is not None) == never:
        _malformed("say either completed, with the answer, or never_happened: true")
    if never:
        return NothingHappened()
    if not isinstance(completed, dict):
        _malformed("completed is an object with status, headers and body_base64")
    check_names(completed, "status", "headers", "body_base64")
    status, headers, body = completed.get("status"), completed.get("headers", []), completed.get("body_base64", "")
    is_list = isinstance(headers, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair) for pair in headers
    )
    if not isinstance(status, int) or isinstance(status, bool) or not is_list or not isinstance(body, str):
        _malformed("completed has a status, headers as a list of [name, value], and the body in base64")
    try:
        return Happened(*answer_of(status, [(name, value) for name, value in headers], b64decode(body, validate=True)))
    except (binascii.Error, ValueError) as error:
        _malformed(str(error) if isinstance(error, AnswerRefused) else "body_base64 is not base64")


def audit_of(asked: Mapping[str, Any]) -> Audit:
    """Who asks, and why."""
    who, why = asked.get("by", "the admin API"), asked.get("why", "")
    if not isinstance(who, str) or not isinstance(why, str):
        _malformed("by and why are text")
    try:
        return audit_by(who, why)
    except ValueError as error:
        _malformed(str(error))


def token_of(asked: Mapping[str, Any]) -> int | None:
    """The token, where one is given."""
    token = asked.get("token")
    if token is not None and (not isinstance(token, int) or isinstance(token, bool) or token < 1):
        _malformed("token is a whole number")
    return token


def flag(asked: Mapping[str, Any], name: str) -> bool:
    """`true` or `false`; false where it is not given."""
    value = asked.get(name, False)
    if not isinstance(value, bool):
        _malformed(f"{name} is true or false")
    return value


def check_names(asked: Mapping[str, Any], *names: str) -> None:
    """No other member is given than these."""
    for name in asked:
        if name not in names:
            # Not repeated: it may be anything.
            _malformed(f"an unknown name; known here: {', '.join(names)}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is named twice")
    return members


def _malformed(detail: str) -> NoReturn:
    raise Declined(problem(400, "malformed", detail))
