"""What a browser lets pages of other origins read (CORS: the Fetch standard, section 3.3).

Pure. Of a response that the service made for this very request, the service decides, and what it says of origins stays
as it is. A response that it made for an earlier request is about the origin of that one: here it says nothing of
another, unless the configuration does. Of the gateway's own responses the configuration decides alone. The headers of
the gateway are readable wherever the response is. Preflights for routes reach the service; those for the gateway's own
resource get theirs here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.config.models import Cors
from gateway.core.message import Headers, header_values, list_members
from gateway.protect.reply import Reply, Source, reason_phrase

_ALLOW_ORIGIN: Final = b"access-control-allow-origin"
_ALLOWING: Final = frozenset((_ALLOW_ORIGIN, b"access-control-allow-credentials"))
_ANY: Final = b"*"
_OWN: Final = frozenset((b"idempotent-replayed", b"idempotency-expires"))
# Of the gateway's own responses, in addition. A browser shows neither by itself.
_OWN_ADVICE: Final = frozenset((b"etag", b"link", b"location", b"preference-applied", b"retry-after"))
_PREFLIGHT_SECONDS: Final = b"600"


NO_ORIGINS: Final = Cors()


def preflight_reply(policy: Cors, request_headers: Headers, methods: bytes) -> Reply | None:
    """The reply to a preflight for a resource of the gateway; None if it is none, or its origin is not allowed."""
    origins = header_values(request_headers, b"origin")
    is_preflight = len(origins) == 1 and header_values(request_headers, b"access-control-request-method")
    if not is_preflight or not _allow(policy, origins[0]):
        return None
    asked = header_values(request_headers, b"access-control-request-headers")
    headers = [
        (b"Access-Control-Allow-Methods", methods),
        (b"Access-Control-Max-Age", _PREFLIGHT_SECONDS),
        (b"Vary", b"Access-Control-Request-Headers"),
        # A scope may be in any header. A wildcard would not cover `Authorization`.
        *((b"Access-Control-Allow-Headers", names) for names in asked),
    ]
    return Reply(204, reason_phrase(204), tuple(headers), b"")


def for_origin(reply: Reply, request_headers: Headers, policy: Cors, *, shows_status: bool) -> Reply:
    """The reply as pages of the request's origin may read it. `shows_status`: it will have `Idempotency-Status`."""
    origins = header_values(request_headers, b"origin")
    if reply.source is Source.SERVICE and not origins:
        return reply
    headers = reply.headers
    if reply.source is not Source.SERVICE:
        # Also where no origin is named: a cache must not give that response to another one.
        if policy.origins not in ((), "any") and b"origin" not in list_members(header_values(headers, b"vary")):
            headers = (*headers, (b"Vary", b"Origin"))
        if origins:
            headers = _allowed(headers, origins, policy)
    if origins and header_values(headers, _ALLOW_ORIGIN):
        shown = _OWN if reply.source is not Source.GATEWAY else _OWN | _OWN_ADVICE
        names = [name for name, _ in headers if name.lower() in shown]
        if shows_status and reply.verdict is not None:
            names.append(b"Idempotency-Status")
        if names:
            headers = (*headers, (b"Access-Control-Expose-Headers", b", ".join(names)))
    return reply if headers is reply.headers else replace(reply, headers=headers)


def _allow(policy: Cors, origin: bytes) -> Headers:
    """The headers that allow this origin to read a response; none if it may not."""
    if policy.origins == "any":
        return ((b"Access-Control-Allow-Origin", _ANY),)
    if origin.decode("latin-1") not in policy.origins:
        return ()
    allowed = (b"Access-Control-Allow-Origin", origin)
    return (allowed, (b"Access-Control-Allow-Credentials", b"true")) if policy.credentials else (allowed,)


def _allowed(headers: Headers, origins: list[bytes], policy: Cors) -> Headers:
    """The headers with what allows the one origin of this request, and nothing that allowed another."""
    recorded = header_values(headers, _ALLOW_ORIGIN)
    if recorded in ([_ANY], origins):
        return headers
    kept = tuple(header for header in headers if header[0].lower() not in _ALLOWING) if recorded else headers
    return (*kept, *_allow(policy, origins[0])) if len(origins) == 1 else kept
