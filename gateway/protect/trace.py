"""What operators see of a request on a protected route: what it was, and what became known of it on its way.

Never the query, a body or a credential: a path is enough to recognise a request in other logs. Everything is short and
printable, whatever was sent.
"""

from __future__ import annotations

import time
from typing import Final

from gateway.core.message import RequestHead, header_values, trace_id_of
from gateway.core.operation import CUT, RequestInfo
from gateway.core.verdict import Verdict
from gateway.observe.facts import Kind, RequestAnswered
from gateway.protect.reply import Reply
from gateway.protect.request import Request
from gateway.protect.route import Route

# Refusals that operators want to know the caller of.
_MISUSED: Final = (Verdict.KEY_REUSED, Verdict.LIKELY_DUPLICATE)
# Replies that repeat one that there was.
_REPLAYS: Final = (Verdict.REPLAYED, Verdict.RECOVERED, Verdict.FETCHED, Verdict.EVENT_DUPLICATE)
_HOST_CHARS_MAX: Final = 255
_PATH_CHARS_MAX: Final = 512


def answered(request: Request, route: Route, verdict: Verdict, reply: Reply) -> RequestAnswered:
    """The event that the request got this reply now, with this verdict."""
    duration_seconds = time.monotonic() - request.began
    if request.is_executed:
        kind = Kind.EXECUTED
    elif verdict is Verdict.ACCEPTED:
        kind = Kind.ACCEPTED
    elif request.wait_until is not None:
        kind = Kind.WAITED
    else:
        kind = Kind.REPLAYED if verdict in _REPLAYS else Kind.REFUSED
    head, operation_id = request.head, request.operation_id
    is_misused = verdict in _MISUSED and operation_id is not None
    return RequestAnswered(
        route=route.name,
        verdict=verdict,
        status=reply.status,
        duration_seconds=duration_seconds,
        method=head.method.decode("latin-1"),
        operation_id=operation_id,
        upstream_status=request.upstream_status,
        upstream_seconds=request.upstream_seconds,
        attempt=request.attempt,
        request_id=head.text(b"x-request-id"),
        trace_id=head.text(b"traceparent"),
        why=reply.why,
        differs=reply.differs,
        first_operation=reply.first_operation,
        scope=scope_name(request.identity.scope_digest) if is_misused else None,
        kind=kind,
        trace=request.context,
        origin=request.origin,
        waited_seconds=duration_seconds - request.waits_from_seconds if kind is Kind.WAITED else None,
    )


def scope_name(scope_digest: bytes) -> str:
    """What distinguishes callers for operators: the beginning of the scope's digest."""
    return scope_digest[:6].hex()


def request_info(head: RequestHead) -> RequestInfo:
    """The request in short; a value over its limit ends in `CUT`."""
    hosts = header_values(head.headers, b"host")
    return RequestInfo(
        head.method.decode("latin-1"),
        _shown(hosts[0], _HOST_CHARS_MAX) if hosts else "",
        _shown(head.target.partition(b"?")[0], _PATH_CHARS_MAX),
        head.text(b"x-request-id"),
        trace_id_of(head.text(b"traceparent")),
    )


def _shown(octets: bytes, chars_max: int) -> str:
    """Visible ASCII unchanged, every other octet as `%XX`."""
    text = octets.decode("latin-1")
    if not (text.isascii() and text.isprintable() and " " not in text):
        text = "".join(char if "!" <= char <= "~" else f"%{ord(char):02X}" for char in text[:chars_max])
    return text if len(text) <= chars_max and len(octets) <= chars_max else text[: chars_max - 1] + CUT
