"""How a store keeps the request of an attempt: as one line such as `POST api.example.com /v1/charges`, without its ids.

One column instead of three, because most requests of a route have the same line.
"""

from __future__ import annotations

from gateway.core.operation import RequestInfo

_NO_HOST = "-"


def line_of(request: RequestInfo | None) -> str:
    """The line; empty if the request is not known."""
    return "" if request is None else f"{request.method} {request.host or _NO_HOST} {request.path}"


def request_of(line: str, request_id: str | None, trace_id: str | None) -> RequestInfo | None:
    """Undo `line_of`."""
    if not line:
        return None
    method, host, path = line.split(" ", 2)
    return RequestInfo(method, "" if host == _NO_HOST else host, path, request_id, trace_id)
