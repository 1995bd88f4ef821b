"""What operators see of a request on a protected route: what it was, and what became known of it on its way.

Never the query, a body or a credential: a path is enough to recognise a request in other logs. Everything is short and
printable, whatever was sent.
"""

from __future__ import annotations

import re
import time
from typing import Final

from gateway.core.message import RequestHead, logged, trace_id_of, values_by_name
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
# What is shown as it is.
_HOST: Final = re.compile(rb"[!-~]{0,255}")
_PATH: Final = re.compile(rb"[!-~]{0,512}")
_NO_VALUES: Final = (b"",)


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
    by_name = values_by_name(head.headers)
    request_id, parent = by_name.get(b"x-request-id"), by_name.get(b"traceparent")
    # By their order, which takes half as long: every reply has one.
    return RequestAnswered(
        route.name,
        verdict,
        reply.status,
        duration_seconds,
        head.method.decode("latin-1"),
        operation_id,
        request.upstream_status,
        request.attempt,
        None if request_id is None else logged(request_id[0]),
        None if parent is None else logged(parent[0]),
        request.upstream_seconds,
        reply.why,
        reply.differs,
        reply.first_operation,
        scope_name(request.identity.scope_digest) if is_misused else None,
        kind,
        request.context,
        request.origin,
        duration_seconds - request.waits_from_seconds if kind is Kind.WAITED else None,
    )


def scope_name(scope_digest: bytes) -> str:
    """What distinguishes callers for operators: the beginning of the scope's digest."""
    return scope_digest[:6].hex()


def request_info(head: RequestHead) -> RequestInfo:
    """The request in short; a value over its limit ends in `CUT`."""
    by_name = values_by_name(head.headers)
    host, path = by_name.get(b"host", _NO_VALUES)[0], head.target.partition(b"?")[0]
    request_id, parent = by_name.get(b"x-request-id"), by_name.get(b"traceparent")
    return RequestInfo(
        head.method.decode("latin-1"),
        host.decode() if _HOST.fullmatch(host) else _shown(host, _HOST_CHARS_MAX),
        path.decode() if _PATH.fullmatch(path) else _shown(path, _PATH_CHARS_MAX),
        None if request_id is None else logged(request_id[0]),
        None if parent is None else trace_id_of(logged(parent[0])),
    )


def _shown(octets: bytes, chars_max: int) -> str:
    """Visible ASCII unchanged, every other octet as `%XX`."""
    chars = (chr(octet) if 0x21 <= octet <= 0x7E else f"%{octet:02X}" for octet in octets[:chars_max])
    text = "".join(chars)
    return text if len(text) <= chars_max and len(octets) <= chars_max else text[: chars_max - 1] + CUT
