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
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final
from uuid import UUID

from aiohttp import web

from gateway.admin.documents import MANNER, Declined, problem, said
from gateway.admin.inspection import full_json
from gateway.admin.journal import listed
from gateway.admin.memory import MemoryState
from gateway.admin.operations import Operations
from gateway.admin.request import (
    audit_of,
    body_of,
    check_method,
    check_names,
    flag,
    journal_query_of,
    operation_id_of,
    query_of,
    ruling_of,
    token_of,
)
from gateway.admin.resolution import Changed, Refusal, Refused
from gateway.admin.throttle import FAILURES_MAX, Throttle
from gateway.admin.view import described
from gateway.observe.side_port import SidePort
from gateway.store.base import Amnesic, Indefinite, NotApplied, Rejected, StartRefused, Withheld, boot_seconds

# What overrules a refusal here, by its reason.
_OVERRULE: Final[Mapping[Refusal, str]] = {
    Refusal.EARLY: ' To overrule this, add "force": true.',
    Refusal.ANSWER: ' To overrule this, add "force": true.',
    Refusal.UNSURE: ' To confirm it, add "yes": true.',
}
_LOG = logging.getLogger("gateway")

_REQUESTS_MAX: Final = 16
# Longer than the patience of one action.
_ANSWER_SECONDS: Final = 60.0
# What a body has beside an answer.
_FRAME_BYTES_MAX: Final = 1024 * 1024

Action = Callable[[UUID, Mapping[str, Any]], Awaitable[Changed | Refused]]


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
        except Declined as declined:
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
        """Let the request pass, or raise `Declined`."""
        values = request.headers.getall("Authorization", [])
        if not values:
            # Not counted, not logged: any web page can have an operator's browser send it from the operator's address.
            raise Declined(_unauthorized('Bearer realm="admin"'))
        wait_seconds = self._throttle.wait_seconds(request.remote)
        if wait_seconds:
            after = {"Retry-After": str(math.ceil(wait_seconds))}
            raise Declined(problem(429, "throttled", "The token was wrong too often; wait.", after))
        scheme, _, given = values[0].partition(" ") if len(values) == 1 else ("", "", "")
        digest = sha256(given.strip(" ").encode("utf-8", "surrogateescape")).digest()
        if compare_digest(digest, self._token_digest) and scheme.lower() == "bearer":
            return
        failures = self._throttle.failed(request.remote)
        more = " too often: it has to wait now" if failures >= FAILURES_MAX else ""
        _LOG.warning("the admin port refused %s, whose token is wrong%s", request.remote, more)
        raise Declined(_unauthorized('Bearer realm="admin", error="invalid_token"'))

    # -- what ---------------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        parts = request.path.split("/")[1:]
        match parts:
            case ["operations"]:
                check_method("GET", request)
                return await self._list(request)
            case ["operations", text]:
                check_method("GET", request)
                return await self._inspect(operation_id_of(text))
            case ["operations", text, verb] if verb in self._actions:
                check_method("POST", request)
                return await self._act(request, verb, operation_id_of(text))
            case ["memory"]:
                check_method("GET", request)
                return _remembered(await self._operations.memory())
            case ["memory", "accept-loss"]:
                check_method("POST", request)
                asked = await body_of(request, self._body_bytes_max)
                check_names(asked, "why", "by")
                return _remembered(await self._operations.accept_loss(audit_of(asked)))
            case ["journal"]:
                check_method("GET", request)
                return await self._journal(request)
            case _:
                return problem(404, "no-such-path", "There is nothing here; see /operations.")

    async def _list(self, request: web.BaseRequest) -> web.Response:
        query = query_of(request.query_string)
        page = await self._operations.page(query)
        found = [described(snapshot, has_body=False) for snapshot in page]
        after = found[-1]["operation_id"] if len(found) == query.limit else None
        return said(200, {"operations": found, "next": after})

    async def _journal(self, request: web.BaseRequest) -> web.Response:
        is_refused, limit = journal_query_of(request.query_string)
        return said(200, listed(await self._operations.journal(is_refused=is_refused, limit=limit)))

    async def _inspect(self, operation_id: UUID) -> web.Response:
        inspected = await self._operations.inspect(operation_id)
        about = full_json(inspected)
        if inspected.snapshot.record is None:
            return problem(404, Refusal.UNKNOWN, about["next"], operation=about)
        return said(200, about)

    async def _act(self, request: web.BaseRequest, verb: str, operation_id: UUID) -> web.Response:
        asked = await body_of(request, self._body_bytes_max)
        outcome = await self._actions[verb](operation_id, asked)
        operation = {"operation_id": str(operation_id), **described(outcome.snapshot, has_body=True)}
        if isinstance(outcome, Refused):
            status = 404 if outcome.reason is Refusal.UNKNOWN else 409
            return problem(
                status, outcome.reason, outcome.text + _OVERRULE.get(outcome.reason, ""), operation=operation
            )
        audit = audit_of(asked)
        _LOG.info("the admin API did a %s of operation %s, by %s: %s", verb, operation_id, audit.who, audit.why)
        about = {"detail": outcome.text, "notes": list(outcome.notes), "drops_owed": outcome.drops_owed}
        return said(200, {**about, "operation": operation})

    async def _resolve(self, operation_id: UUID, asked: Mapping[str, Any]) -> Changed | Refused:
        check_names(asked, "completed", "never_happened", "why", "by", "force", "token")
        token = token_of(asked)
        return await self._operations.resolve(
            operation_id, ruling_of(asked), audit_of(asked), is_forced=flag(asked, "force"), token=token
        )

    async def _purge(self, operation_id: UUID, asked: Mapping[str, Any]) -> Changed | Refused:
        check_names(asked, "why", "by")
        return await self._operations.purge(operation_id, audit_of(asked))

    async def _erase(self, operation_id: UUID, asked: Mapping[str, Any]) -> Changed | Refused:
        check_names(asked, "why", "by", "yes")
        return await self._operations.erase(operation_id, audit_of(asked), is_sure=flag(asked, "yes"))


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
