"""Fetches the response to a repeat from the service: a GET of what the first request made, by the caller of the repeat.

Owns which request that is sent as, and what the caller gets where the service does not respond. The service decides
again what this caller may see, so no two callers share a fetch, and nothing of it is stored. It claims nothing: the
record stays as it is, whatever the service says.
"""

from __future__ import annotations

import time
from typing import assert_never

from gateway.core.verdict import Verdict
from gateway.protect.forwarding import fetched_request
from gateway.protect.problem import UNFETCHED, refuse
from gateway.protect.reply import Reply, ToFetch
from gateway.protect.request import Request
from gateway.protect.upstream_reply import passed_on
from gateway.upstream import Lost, NotSent, UpstreamResponse, status_of


class Fetching:
    """The fetches of one process."""

    def __init__(self) -> None:
        self.in_progress = 0
        """How many wait for the head of a response."""

    async def fetch(self, wanted: ToFetch, request: Request, timeout_seconds: float) -> Reply:
        """Rule 10. The response of the service, whatever its status; 502 to 504 where there is none in time."""
        target = request.route.target
        head = fetched_request(request.head, request.hop, target.forwarding, wanted.target, target.key_headers)
        began = time.monotonic()
        self.in_progress += 1
        try:
            # Among the protected ones, whose number is bounded: unprotected ones may hold connections for any time.
            result = await target.upstream.exchange(
                head, protected=True, may_send=lambda: True, response_timeout_seconds=timeout_seconds
            )
        finally:
            self.in_progress -= 1
        request.upstream_seconds = time.monotonic() - began
        match result:
            case UpstreamResponse():
                request.upstream_status = result.head.status
                return passed_on(result, Verdict.FETCHED)
            case NotSent(reason) | Lost(reason):
                return refuse(
                    Verdict.UPSTREAM_UNREACHABLE,
                    shape=request.route.shape,
                    status=status_of(reason),
                    record=wanted.record,
                    case=UNFETCHED,
                )
            case _:
                assert_never(result)
