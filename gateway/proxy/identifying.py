"""Rules 4 to 7: what a request is, and whose.

Owns the way from a request as it came in to an operation with fingerprints: the key, the scope, the whole body, the
digests. It claims nothing and asks no store; whatever it refuses has left nothing behind.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final, assert_never
from urllib.parse import unquote_to_bytes
from uuid import UUID

from gateway.core.identity import identity_of
from gateway.core.key import Key, KeyFault, find_key, needs_body
from gateway.core.message import RequestHead, field_values
from gateway.core.operation import ProbeTarget
from gateway.core.recovery import Probe, Resend, render_probe
from gateway.core.routing import normalise_path
from gateway.core.scope import Scope, ScopeMissing, ScopeUnsuitable, scope_of
from gateway.core.verdict import Word
from gateway.proxy.conclusion import KeyedRequest
from gateway.proxy.digesting import digest_body, find_key_in
from gateway.proxy.problem import refuse
from gateway.proxy.reply import Incoming, Reply, Untouched
from gateway.proxy.route import Route
from gateway.proxy.spool import Spool, SpoolFailed, TakenBody, WholeBody
from gateway.proxy.structured_fields import unquote

_LOG = logging.getLogger("gateway")

# RFC 9110 section 11.6.1 wants a challenge with every 401. Which scheme the service behind takes is not known here.
_CHALLENGE: Final = b'Bearer realm="service"'


class Identifying:
    """Identifies requests for one service. `keeps_clear_keys`: records are to hold keys in clear."""

    def __init__(self, service: str, spool: Spool, *, keeps_clear_keys: bool = False) -> None:
        self._service = service
        self._spool = spool
        self._keeps_clear_keys = keeps_clear_keys

    async def identify(self, incoming: Incoming, route: Route) -> KeyedRequest | Reply | Untouched:
        """Rules 4 to 7. What decides is in the head where possible, so that no body is taken in for nothing.

        The body of what is returned belongs to the caller; of a refusal, nothing is left. Raises what the request's
        body raises when it is cut short.
        """
        headers = incoming.head.headers
        key = None
        if not needs_body(route.key):
            key = find_key(route.key, headers, None, unquote)
            if key is None:
                return _without_key(incoming, route)
            scope = scope_of(route.scope, headers, incoming.peer)
            if not isinstance(scope, Scope):
                return _refuse_scope(scope, route)
        body = await self._take(incoming, route)
        if isinstance(body, Reply):
            return body
        answer: KeyedRequest | Reply | Untouched | None = None
        try:
            if key is None:
                key = await find_key_in(route.key, headers, body.content, unquote)
            answer = await self._identify_whole(incoming, route, key, body)
            return answer
        finally:
            if answer is None or isinstance(answer, Reply):
                body.close()

    async def _take(self, incoming: Incoming, route: Route) -> TakenBody | Reply:
        """Rule 6."""
        try:
            body = await self._spool.take(
                incoming.body, bytes_max=route.body_bytes_max, spool_over_bytes=route.spool_over_bytes
            )
        except SpoolFailed as error:
            _LOG.error("%s", error)
            detail = "The gateway has no room for the body."
            return refuse(Word.OVERLOADED, shape=route.shape, detail=detail, retry_after_seconds=1)
        if body is None:
            detail = f"The limit is {route.body_bytes_max} bytes."
            return refuse(Word.BODY_TOO_LARGE, shape=route.shape, detail=detail)
        return body

    async def _identify_whole(
        self, incoming: Incoming, route: Route, key: Key | KeyFault | None, body: TakenBody
    ) -> KeyedRequest | Reply | Untouched:
        """What the request is, now that all of it is here."""
        if key is None:
            return _without_key(replace(incoming, body=WholeBody(body)), route)
        scope = scope_of(route.scope, incoming.head.headers, incoming.peer)
        if not isinstance(scope, Scope):
            return _refuse_scope(scope, route)
        if isinstance(key, KeyFault):
            return refuse(Word.KEY_INVALID, shape=route.shape, detail=key.detail)
        digests = await digest_body(route.fingerprinter, incoming.head, body.content, body.digest)
        identity = identity_of(
            service=self._service,
            route=route.name,
            operation=route.operation,
            scope=scope,
            key=key,
            keeps_clear_key=self._keeps_clear_keys,
        )
        return KeyedRequest(
            head=incoming.head,
            body=body,
            peer=incoming.peer,
            scheme=incoming.scheme,
            route=route,
            identity=identity,
            fingerprints=route.fingerprinter.alternatives(digests),
            probe=_probe_target(incoming.head, route, identity.operation_id, key),
            canonical_key=key.field_value if isinstance(route.recovery, Resend) else None,
        )


def _without_key(incoming: Incoming, route: Route) -> Reply | Untouched:
    """Rule 4."""
    if route.is_key_required:
        return refuse(Word.KEY_MISSING, shape=route.shape)
    return Untouched(incoming, Word.UNKEYED)


def _refuse_scope(scope: ScopeMissing | ScopeUnsuitable, route: Route) -> Reply:
    """Rule 5."""
    match scope:
        case ScopeMissing(detail, is_credential):
            challenge = _CHALLENGE if is_credential else None
            return refuse(Word.SCOPE_MISSING, shape=route.shape, detail=detail, authenticate=challenge)
        case ScopeUnsuitable(detail):
            return refuse(Word.SCOPE_UNSUITABLE, shape=route.shape, detail=detail)
        case _:
            assert_never(scope)


def _probe_target(head: RequestHead, route: Route, operation_id: UUID, key: Key) -> ProbeTarget | None:
    """What a probe of this operation will ask, rendered now: later the request is gone."""
    if not isinstance(route.recovery, Probe):
        return None
    values = {
        name: unquote_to_bytes(value) for name, value in route.path.variables(normalise_path(head.target)).items()
    }
    values |= {"operation_id": str(operation_id).encode(), "key": key.text.encode("utf-8", "surrogatepass")}
    hosts = field_values(head.headers, b"host")
    forwarding = route.target.forwarding
    return render_probe(route.recovery, values, forwarding.host or (hosts[0] if hosts else forwarding.authority))
