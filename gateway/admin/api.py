"""What operators do, over HTTP: the admin port. For those who hold its token, on a listener of its own.

    GET  /operations?state=&route=&older_than=&after=&limit=    list, page by page
    GET  /operations/{id}                                       all that is known of one, with its audits
    POST /operations/{id}/resolve                               end a doubt
    POST /operations/{id}/purge, /operations/{id}/erase         drop an answer; forget a key
    GET  /memory                                                whether the store lost its memory
    POST /memory/accept-loss                                    believe it again
    GET  /journal?state=&limit=                                 what waits on this host for the store, or was refused

JSON in and out, problems as RFC 9457 has them. Nothing is changed by a GET, no other origin is let in, and nobody
learns anything before the token was right: it is compared in constant time, and whoever is wrong too often waits.
"""

from __future__ import annotations

import asyncio
import binascii
import json
import logging
import math
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl
from uuid import UUID

from aiohttp import web

from gateway.admin.answer import AnswerRefused, answer_of
from gateway.admin.console import full_json
from gateway.admin.documents import MANNER, problem, said
from gateway.admin.journal import REFUSED, WAITING, listed
from gateway.admin.memory import MemoryState
from gateway.admin.operations import PAGE_SIZE_MAX, Operations, audit_by
from gateway.admin.resolution import Changed, Happened, NothingHappened, Refusal, Refused, Ruling
from gateway.admin.throttle import FAILURES_MAX, Throttle
from gateway.admin.view import described
from gateway.config.unit import duration_seconds
from gateway.core.operation import Audit, Snapshot, State, microseconds
from gateway.observe.side_port import SidePort
from gateway.store.base import Amnesic, Indefinite, NotApplied, Query, Rejected, StartRefused, Withheld, boot_seconds

_LOG = logging.getLogger("gateway")

PATH: Final = "/operations"

_REQUESTS_MAX: Final = 16
# Longer than the patience of one action.
_ANSWER_SECONDS: Final = 60.0
_PAGE_SIZE: Final = 100
# What a body has beside an answer.
_FRAME_BYTES_MAX: Final = 1024 * 1024

_STATUS_OF: Final[Mapping[Refusal, int]] = {
    Refusal.UNKNOWN: 404,
    Refusal.STATE: 409,
    Refusal.MOVED: 409,
    Refusal.EARLY: 409,
    Refusal.ANSWER: 409,
    Refusal.UNSURE: 409,
    Refusal.SERVICE: 409,
}

Action = Callable[[UUID, Mapping[str, Any]], Awaitable[Changed | Refused]]


class _Declined(Exception):
    """An answer that ends the request."""

    def __init__(self, response: web.Response) -> None:
        self.response = response


class AdminApi:
    """Listens from `start` to `stop`. `answer_bytes_max`: the longest answer that a route keeps."""

    def __init__(
        self,
        operations: Operations,
        token: str,
        *,
        answer_bytes_max: int,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self._operations = operations
        self._token_digest = sha256(token.encode()).digest()
        self._body_bytes_max = answer_bytes_max * 4 // 3 + _FRAME_BYTES_MAX
        self._throttle = Throttle(clock)
        self._port = SidePort(self._handle, MANNER)
        self._under_way = 0
        self._actions: Mapping[str, Action] = {"resolve": self._resolve, "purge": self._purge, "erase": self._erase}

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port, which the system chooses for 0. Raises OSError."""
        return await self._port.start(host, port)

    async def stop(self) -> None:
        """Close the listener; what is under way gets a bounded time."""
        await self._port.stop()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._under_way >= _REQUESTS_MAX:
            return problem(503, "busy", "Too many requests at once.", {"Retry-After": "1"})
        self._under_way += 1
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                self._authenticate(request)
                return await self._answer(request)
        except _Declined as declined:
            return declined.response
        except TimeoutError:
            return _unavailable("It took too long: what was asked may have been done. Ask again to know.")
        except Rejected as error:
            return problem(422, "rejected", f"The store cannot keep this; nothing was changed: {error}")
        except NotApplied as error:
            what = "nothing could be read" if request.method == "GET" else "nothing was changed"
            return _unavailable(f"The store cannot be asked; {what}: {error}")
        except Amnesic as error:
            return problem(503, "store-amnesia", f"Nothing was changed: {error}. See /memory.")
        except Withheld as error:
            return _unavailable(f"The record cannot be shown; nothing was changed: {error}")
        except Indefinite as error:
            return _unavailable(f"It is not known whether this was done: {error}")
        except StartRefused as error:
            return _unavailable(f"Nothing was changed: {error}.")
        finally:
            self._under_way -= 1

    # -- who ----------------------------------------------------------------------------------------------------------

    def _authenticate(self, request: web.BaseRequest) -> None:
        """Let the request pass, or raise `_Declined`."""
        values = request.headers.getall("Authorization", [])
        if not values:
            # Not counted, not logged: any web page can have an operator's browser send it from the operator's address.
            raise _Declined(_unauthorized('Bearer realm="admin"'))
        wait_seconds = self._throttle.wait_seconds(request.remote)
        if wait_seconds:
            after = {"Retry-After": str(math.ceil(wait_seconds))}
            raise _Declined(problem(429, "throttled", "The token was wrong too often; wait.", after))
        scheme, _, given = values[0].partition(" ") if len(values) == 1 else ("", "", "")
        digest = sha256(given.strip(" ").encode("utf-8", "surrogateescape")).digest()
        if compare_digest(digest, self._token_digest) and scheme.lower() == "bearer":
            return
        failures = self._throttle.failed(request.remote)
        more = " too often: it has to wait now" if failures >= FAILURES_MAX else ""
        _LOG.warning("the admin port refused %s, whose token is wrong%s", request.remote, more)
        raise _Declined(_unauthorized('Bearer realm="admin", error="invalid_token"'))

    # -- what ---------------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        parts = request.path.split("/")[1:]
        match parts:
            case ["operations"]:
                _only("GET", request)
                return await self._list(request)
            case ["operations", text]:
                _only("GET", request)
                return await self._inspect(_operation_id(text))
            case ["operations", text, verb] if verb in self._actions:
                _only("POST", request)
                return await self._act(request, verb, _operation_id(text))
            case ["memory"]:
                _only("GET", request)
                return _remembered(await self._operations.memory())
            case ["memory", "accept-loss"]:
                _only("POST", request)
                asked = await self._body_of(request)
                _known(asked, "why", "by")
                return _remembered(await self._operations.accept_loss(_audit_of(asked)))
            case ["journal"]:
                _only("GET", request)
                return await self._journal(request)
            case _:
                return problem(404, "no-such-path", f"There is nothing here; see {PATH}.")

    async def _list(self, request: web.BaseRequest) -> web.Response:
        query = _query_of(request.query_string)
        page = await self._operations.page(query)
        found = [described(snapshot, has_body=False) for snapshot in page]
        after = found[-1]["operation_id"] if len(found) == query.limit else None
        return said(200, {"operations": found, "next": after})

    async def _journal(self, request: web.BaseRequest) -> web.Response:
        asked = _asked(request.query_string, "state", "limit")
        states = asked.get("state", [])
        if not set(states) <= {WAITING, REFUSED}:
            _malformed(f"state is {WAITING} or {REFUSED}")
        is_refused = None if len(set(states)) != 1 else states[0] == REFUSED
        return said(200, listed(await self._operations.journal(is_refused=is_refused, limit=_limit_of(asked))))

    async def _inspect(self, operation_id: UUID) -> web.Response:
        inspected = await self._operations.inspect(operation_id)
        about = full_json(inspected)
        if inspected.snapshot.record is None:
            return problem(404, Refusal.UNKNOWN, about["next"], operation=about)
        return said(200, about)

    async def _act(self, request: web.BaseRequest, verb: str, operation_id: UUID) -> web.Response:
        asked = await self._body_of(request)
        outcome = await self._actions[verb](operation_id, asked)
        operation = {"operation_id": str(operation_id), **_described(outcome.snapshot)}
        if isinstance(outcome, Refused):
            return problem(_STATUS_OF[outcome.reason], outcome.reason, outcome.text, operation=operation)
        audit = _audit_of(asked)
        _LOG.info("the admin API did a %s of operation %s, by %s: %s", verb, operation_id, audit.who, audit.why)
        about = {"detail": outcome.text, "notes": list(outcome.notes), "drops_owed": outcome.drops_owed}
        return said(200, {**about, "operation": operation})

    async def _resolve(self, operation_id: UUID, asked: Mapping[str, Any]) -> Changed | Refused:
        _known(asked, "completed", "never_happened", "why", "by", "force", "token")
        token = asked.get("token")
        if token is not None and (not isinstance(token, int) or isinstance(token, bool) or token < 1):
            _malformed("token is a whole number")
        return await self._operations.resolve(
            operation_id, _ruling_of(asked), _audit_of(asked), is_forced=_flag(asked, "force"), token=token
        )

    async def _purge(self, operation_id: UUID, asked: Mapping[str, Any]) -> Changed | Refused:
        _known(asked, "why", "by")
        return await self._operations.purge(operation_id, _audit_of(asked))

    async def _erase(self, operation_id: UUID, asked: Mapping[str, Any]) -> Changed | Refused:
        _known(asked, "why", "by", "yes")
        return await self._operations.erase(operation_id, _audit_of(asked), is_sure=_flag(asked, "yes"))

    async def _body_of(self, request: web.BaseRequest) -> Mapping[str, Any]:
        """The body, which is a JSON object. Raises `_Declined`."""
        if (
            request.content_type != "application/json"
            or request.headers.get("Content-Encoding", "identity") != "identity"
        ):
            raise _Declined(problem(415, "unsupported", "Send application/json, without a content coding."))
        parts, size = [], 0
        async for part in request.content.iter_any():
            size += len(part)
            if size > self._body_bytes_max:
                response = problem(413, "too-large", f"The limit is {self._body_bytes_max} bytes.")
                response.force_close()
                raise _Declined(response)
            parts.append(part)
        try:
            asked = json.loads(b"".join(parts), object_pairs_hook=_object)
        except (ValueError, RecursionError):
            _malformed("the body is not JSON, or names a member twice")
        if not isinstance(asked, dict):
            _malformed("the body is not a JSON object")
        return asked


# -- reading what was asked -------------------------------------------------------------------------------------------


def _malformed(detail: str) -> NoReturn:
    raise _Declined(problem(400, "malformed", detail))


def _remembered(state: MemoryState) -> web.Response:
    return said(200, {"is_lost": state.is_lost, "detail": state.text})


def _unauthorized(challenge: str) -> web.Response:
    response = problem(
        401, "unauthorized", "Send the admin token as Authorization: Bearer TOKEN.", {"WWW-Authenticate": challenge}
    )
    # What follows on this connection is not read.
    response.force_close()
    return response


def _unavailable(detail: str) -> web.Response:
    return problem(503, "store-unavailable", detail, {"Retry-After": "5"})


def _only(method: str, request: web.BaseRequest) -> None:
    if request.method != method:
        raise _Declined(problem(405, "method", f"Only {method} is answered here.", {"Allow": method}))


def _operation_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        _malformed("the path does not name the id of an operation")


def _asked(text: str, *names: str) -> dict[str, list[str]]:
    """The members of a query, of which only these are known."""
    asked: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=64)
    except ValueError:
        _malformed("the query string is malformed")
    for name, value in pairs:
        asked.setdefault(name, []).append(value)
    _known(asked, *names)
    for name in ("older_than", "after", "limit"):
        if len(asked.get(name, ())) > 1:
            _malformed(f"{name} is given more than once")
    return asked


def _limit_of(asked: Mapping[str, list[str]]) -> int:
    limit = asked.get("limit", [str(_PAGE_SIZE)])[0]
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 4 and 1 <= int(limit) <= PAGE_SIZE_MAX):
        _malformed(f"limit is a whole number from 1 to {PAGE_SIZE_MAX}")
    return int(limit)


def _query_of(text: str) -> Query:
    """The query of a list; the states in doubt if none is asked for."""
    asked = _asked(text, "state", "route", "older_than", "after", "limit")
    age_seconds = duration_seconds(asked["older_than"][0]) if "older_than" in asked else 0.0
    if age_seconds is None:
        _malformed("older_than is a duration such as 30s, 5m, 12h or 7d")
    return Query(
        states=_states_of(asked.get("state", [State.IN_DOUBT.value])),
        routes=frozenset(asked["route"]) if "route" in asked else None,
        age_us=microseconds(age_seconds),
        after=_operation_id(asked["after"][0]) if "after" in asked else None,
        limit=_limit_of(asked),
    )


def _states_of(names: list[str]) -> frozenset[State]:
    known = {state.value: state for state in State if state is not State.ABSENT}
    if names == ["all"]:
        return frozenset(known.values())
    if not set(names) <= set(known):
        _malformed(f"state is one of {', '.join(known)}, or all")
    return frozenset(known[name] for name in names)


def _ruling_of(asked: Mapping[str, Any]) -> Ruling:
    completed, never = asked.get("completed"), _flag(asked, "never_happened")
    if (completed is not None) == never:
        _malformed("say either completed, with the answer, or never_happened: true")
    if never:
        return NothingHappened()
    if not isinstance(completed, dict):
        _malformed("completed is an object with status, headers and body_base64")
    _known(completed, "status", "headers", "body_base64")
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


def _audit_of(asked: Mapping[str, Any]) -> Audit:
    who, why = asked.get("by", "the admin API"), asked.get("why", "")
    if not isinstance(who, str) or not isinstance(why, str):
        _malformed("by and why are text")
    try:
        return audit_by(who, why)
    except ValueError as error:
        _malformed(str(error))


def _flag(asked: Mapping[str, Any], name: str) -> bool:
    value = asked.get(name, False)
    if not isinstance(value, bool):
        _malformed(f"{name} is true or false")
    return value


def _known(asked: Mapping[str, Any], *names: str) -> None:
    for name in asked:
        if name not in names:
            # Not repeated: it may be anything.
            _malformed(f"an unknown name; known here: {', '.join(names)}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is named twice")
    return members


def _described(snapshot: Snapshot) -> dict[str, Any]:
    return described(snapshot, has_body=True)
