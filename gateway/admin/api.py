"""The admin port: operators' actions over HTTP, for those who hold its token, on a listener of its own.

`actions` has what can be asked, and `POST /config/reload` reads the file again and waits for what comes of it.

JSON in and out, errors as problem documents (RFC 9457). A GET changes nothing, other origins have no access, and
without the right token a client learns nothing: tokens are compared in constant time, and repeated failures throttled.
What a token may do is asked here alone, also for the pages under `/ui/`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.admin import access, actions
from gateway.admin.access import Action, Endpoint
from gateway.admin.actions import Change, Look, M, operation_id_of
from gateway.admin.operations import Operations
from gateway.admin.resolution import Changed, Declined, Fault, Refusal, Refused, fault_of, unavailable
from gateway.admin.view import described, operation_in
from gateway.core.operation import Audit, Record, trace_of_attempt
from gateway.observe.facts import AdminActed, AdminResult, Events, SignedIn
from gateway.observe.status import SidePort, terse
from gateway.protect.reply import PROBLEM_TYPE, problem_body
from gateway.store.base import StoreError

if TYPE_CHECKING:
    from gateway.admin.console import Console

_LOG = logging.getLogger("gateway")

TYPE_PREFIX: Final = "urn:idempotency-gateway:admin:"
# How to overrule a refusal, by its reason.
_OVERRULE: Final[Mapping[Refusal, str]] = {
    Refusal.EARLY: ' To overrule this, add "force": true.',
    Refusal.RESPONSE: ' To overrule this, add "force": true.',
    Refusal.UNSURE: ' To confirm it, add "yes": true.',
}

_REQUESTS_MAX: Final = 16
# Of those with no token yet, who could keep everybody else out.
_STRANGERS_MAX: Final = 8
# Longer than the patience of one action.
_RESPONSE_SECONDS: Final = 60.0
# What a body may have besides a response.
_FRAME_BYTES_MAX: Final = 1024 * 1024

# Of all that is refused here.
_PASSING: Final = frozenset((429, 503))

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With `no-referrer` browsers would send `Origin: null` with the console's own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
"""On each response, whatever it is. A header that a response sets itself stays."""

_RECORD: Final = web.RequestKey("record", Record)


class AdminApi:
    """What its `port` serves. `response_bytes_max`: the longest response that a route keeps."""

    def __init__(
        self,
        operations: Operations,
        authentication: access.Authentication,
        events: Events,
        *,
        response_bytes_max: int,
        reload: actions.Reload | None = None,
        pages: Console | None = None,
    ) -> None:
        self._operations = operations
        self.authentication = authentication
        self._facts = events
        self._reload = reload
        self._pages = pages
        # By whether they need a token.
        self._under_way = {True: 0, False: 0}
        app = web.Application(
            middlewares=[self._counted, self._rendered, self._bounded, self._admitted],
            client_max_size=response_bytes_max * 4 // 3 + _FRAME_BYTES_MAX,
        )
        endpoints = [
            *(Endpoint("GET", each.path, access.READ, self._responding(each)) for each in actions.LOOKS),
            *(Endpoint("POST", each.path, each.action, self._changing(each)) for each in actions.CHANGES),
            # By POST, so that a credential in what is pasted is in no address and no log.
            Endpoint("POST", "/find", access.READ, self._find),
            Endpoint("POST", "/config/reload", access.RELOAD, self._reload_config),
            *(() if pages is None else pages.endpoints()),
        ]
        self._actions = {(each.method, each.path): each.action for each in endpoints}
        for each in endpoints:
            app.router.add_route(each.method, each.path, each.handler)
        self.port = SidePort("admin", app, _refuse, line_bytes_max=8 * 1024, stop_seconds=5.0, headers=SECURITY_HEADERS)

    # -- access -------------------------------------------------------------------------------------------------------

    @web.middleware
    async def _rendered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turns faults into pages or problems."""
        try:
            return await handler(request)
        except Fault as fault:
            found = fault
        except (Declined, StoreError) as error:
            found = fault_of(error, is_read=request.method == "GET")
        except web.HTTPException as error:
            allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            found = _fault_of_status(error.status, allowed)
        if self._pages is not None and access.is_page(request):
            response = self._pages.fault(request, found)
        else:
            response = problem(found)
        if found.status in (401, 413):
            # What follows on this connection is not read.
            response.force_close()
        return response

    @web.middleware
    async def _bounded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Bounds the number of requests at once, and the time of each."""
        action = self._action_of(request)
        needs_token = action is None or action.role is not None
        if self._under_way[needs_token] >= (_REQUESTS_MAX if needs_token else _STRANGERS_MAX):
            raise Fault(503, "busy", "Too many requests at once.", {"Retry-After": "1"})
        self._under_way[needs_token] += 1
        try:
            async with asyncio.timeout(_RESPONSE_SECONDS):
                return await handler(request)
        except TimeoutError:
            raise unavailable("It took too long, and may have been done. Repeat the request to find out.") from None
        finally:
            self._under_way[needs_token] -= 1

    @web.middleware
    async def _counted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Publishes what became of a change that somebody with a token asked for, and of a sign-in."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        response = await handler(request)
        action, is_change = self._action_of(request), request.method == "POST"
        refused = AdminResult.FAILED if response.status >= 500 else AdminResult.REFUSED
        result = AdminResult.DONE if response.status < 400 else refused
        if is_change and action is not None and action.role is not None and response.status not in (401, 429):
            about: tuple[UUID | None, int, str | None] = (None, 0, None)
            if (record := request.get(_RECORD)) is not None:
                about = record.identity.operation_id, record.attempts, trace_of_attempt(record)
            self._facts.publish(AdminActed(action.value, result, loop.time() - began, *about))
        if request.get(access.FORGED):
            self._facts.publish(SignedIn(AdminResult.REFUSED))
        elif is_change and request.path == access.SIGN_IN_PATH:
            self._facts.publish(SignedIn(AdminResult.DONE if response.status < 400 else AdminResult.REFUSED))
        return response

    @web.middleware
    async def _admitted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Asks who it is, and whether the role is enough. Without a token a client does not even learn whether a path
        exists."""
        action = self._action_of(request)
        if action is None or action.role is not None:
            person = request[access.PERSON] = await self.authentication.person_of(request)
            if action is not None:
                person.require(action)
        return await handler(request)

    def _action_of(self, request: web.Request) -> Action | None:
        resource = request.match_info.route.resource
        return None if resource is None else self._actions.get((request.method, resource.canonical))

    # -- actions ------------------------------------------------------------------------------------------------------

    def _responding(self, look: Look) -> Handler:
        async def respond(request: web.Request) -> web.Response:
            given = {name: request.query.getall(name) for name in request.query}
            asked = None if look.query is None else actions.parsed(look.query, given)
            return _json(200, await look.find(self._operations, request.match_info, asked))

        return respond

    def _changing(self, change: Change[Any]) -> Handler:
        async def carry_out(request: web.Request) -> web.Response:
            if change.path.startswith("/operations/"):
                # What is no id is said before anything about the body.
                operation_id_of(request.match_info)
            asked = await _asked(request, change.asked)
            audit = asked.audit_as(request[access.PERSON])
            if isinstance(asked, actions.ResolveAsked) and asked.force:
                request[access.PERSON].require(access.FORCE)
            result = await change.carry_out(self._operations, request.match_info, asked, audit)
            verb = change.path.rpartition("/")[2]
            if isinstance(result, Changed | Refused):
                if result.snapshot.record is not None:
                    request[_RECORD] = result.snapshot.record
                return _json(200, _done(verb, operation_id_of(request.match_info), audit, result))
            if not isinstance(result, str):
                return _json(200, result.document)
            _LOG.info("the admin API did a %s, by %s: %s: %s", verb, audit.who, audit.why, result)
            return _json(200, {"detail": result})

        return carry_out

    async def _find(self, request: web.Request) -> web.Response:
        asked = await _asked(request, actions.FindAsked)
        return _json(200, await actions.inspect(self._operations, operation_in(asked.text)))

    async def _reload_config(self, _: web.Request) -> web.Response:
        return _json(200, (await actions.reloaded(self._reload)).document)


async def _asked(request: web.Request, model: type[M]) -> M:
    """What the body of a request asks for. Raises `Malformed`, `web.HTTPException`."""
    is_plain = request.headers.get("Content-Encoding", "identity") == "identity"
    if request.content_type != "application/json" or not is_plain:
        raise web.HTTPUnsupportedMediaType
    return actions.parsed(model, actions.json_object(await request.read()))


# -- responses --------------------------------------------------------------------------------------------------------


def _json(status: int, document: Mapping[str, Any]) -> web.Response:
    return terse(status, orjson.dumps(document) + b"\n", "application/json")


def problem(fault: Fault) -> web.Response:
    """A problem document, as those for callers are (RFC 9457). What may pass by itself may be sent again."""
    status, retryable = fault.status, fault.status in _PASSING
    after = {"Retry-After": "5"} if retryable else {}
    title = HTTPStatus(status).phrase
    body = problem_body(TYPE_PREFIX, fault.code, title, status, fault.detail, retryable, fault.members) + b"\n"
    return terse(status, body, PROBLEM_TYPE.decode(), {**after, **fault.headers})


_BY_STATUS: Final[Mapping[int, tuple[str, str]]] = {
    404: ("no-such-path", "There is nothing here; see /operations."),
    405: ("method", "Only {Allow} is allowed here."),
    413: ("too-large", "The body is longer than any that can be recorded."),
    415: ("unsupported", "Send application/json, without a content coding."),
}


def _fault_of_status(status: int, headers: Mapping[str, str]) -> Fault:
    """The fault for what aiohttp refuses: a path, a method, a body, or invalid HTTP."""
    usual = "failed" if status >= 500 else "malformed", "This request cannot be served."
    code, text = _BY_STATUS.get(status, usual)
    return Fault(status, code, text.format(**headers), headers if status == 405 else None)


def _refuse(status: int, headers: Mapping[str, str]) -> web.Response:
    return problem(_fault_of_status(status, headers))


def _done(verb: str, operation_id: UUID, audit: Audit, outcome: Changed | Refused) -> dict[str, Any]:
    """The document of a change of an operation. Raises `Fault` where it was refused."""
    operation = {"operation_id": str(operation_id), **described(outcome.snapshot, has_body=True)}
    if isinstance(outcome, Refused):
        text = outcome.text + _OVERRULE.get(outcome.reason, "")
        raise Fault(outcome.status, outcome.reason, text, operation=operation)
    _LOG.info("the admin API did a %s of operation %s, by %s: %s", verb, operation_id, audit.who, audit.why)
    about = {"detail": outcome.text, "notes": outcome.notes, "purges_pending": outcome.purges_pending}
    return {**about, "operation": operation}
