"""Where an operation is at home, if several regions have a store each.

An operation is claimed in one region alone, its home, which follows from its id: no two stores ever have a record of
one key. A gateway elsewhere identifies a request, and sends it as it came to a gateway of its home, which identifies it
again and does the rest. A home that cannot be reached costs its callers a 503, and never a second execution.

Trusted proxies and scopes are about the peer of a connection, which at home is another gateway. So the sender writes
whose connection it was into a header, and signs that with the secret that all regions share. A request with such a
header is never sent on: two regions that disagree about a home refuse.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, assert_never
from uuid import UUID

from gateway.core.identity.body import framed
from gateway.core.identity.caller import Hop, hop_from
from gateway.core.identity.key import home_of
from gateway.core.message import RequestHead, header_values
from gateway.core.verdict import Verdict
from gateway.observe.facts import Events, RegionAsked, RegionResult
from gateway.protect.compose import passed_on
from gateway.protect.forwarding import REGION_HEADER, region_request, region_response_headers
from gateway.protect.reply import Reply, Shape, refuse
from gateway.protect.request import Request
from gateway.upstream import Lost, NotSent, OutboundBody, Upstream, UpstreamResponse

_LOG = logging.getLogger("gateway")

# For how long a signature counts: clocks of two regions differ by less.
_SIGNED_SECONDS: Final = 30
# What a gateway at home may take longer than its own callers wait.
_LINK_SECONDS: Final = 5.0
_DOMAIN: Final = b"region"
_NO_PEER: Final = b"-"
_UNVERIFIED: Final = "The request came from another region, and that could not be verified."


class Regions:
    """The regions, as one of them sees it. Lives on one event loop."""

    def __init__(
        self,
        here: str,
        homes: Mapping[str, Upstream],
        secret: bytes,
        events: Events,
        *,
        wall_seconds: Callable[[], float] = time.time,
    ) -> None:
        """`homes` are the clients of the gateways of all regions, in the same order everywhere; `here` is the name of
        one of them. `wall_seconds` returns Unix time."""
        self._here = here
        self._homes = homes
        self._names = tuple(homes)
        self._secret = secret
        self._events = events
        self._wall_seconds = wall_seconds
        self.in_progress = 0
        """How many requests wait for a gateway of another region."""

    def elsewhere(self, operation_id: UUID) -> str | None:
        """The region that this operation is at home in; None if that is this one."""
        name = home_of(operation_id, self._names)
        return None if name == self._here else name

    def receive(self, request: Request, shape: Shape) -> Reply | None:
        """Give the request the hop of its client, if a gateway of another region sent it here; or refuse it."""
        values = header_values(request.head.headers, REGION_HEADER)
        if not values:
            return None
        hop = self._hop_by(values, request.head)
        if isinstance(hop, Hop):
            request.hop = hop
            return None
        _LOG.warning("a request that names another region as its sender was refused: %s", hop)
        return refuse(Verdict.STORE_UNAVAILABLE, shape=shape, detail=_UNVERIFIED)

    async def send(
        self,
        home: str,
        head: RequestHead,
        body: OutboundBody,
        hop: Hop,
        *,
        shape: Shape,
        operation_id: UUID,
        wait_seconds: float,
    ) -> Reply:
        """The reply of a gateway in the operation's home. `wait_seconds` is how long the client waits there."""
        if hop.region is not None:
            _LOG.error(
                "region %s sent a request here that is at home in %s: the regions have different configurations",
                hop.region,
                home,
            )
            detail = "The regions do not agree where this operation is at home."
            return refuse(Verdict.STORE_UNAVAILABLE, shape=shape, operation_id=operation_id, detail=detail)
        self.in_progress += 1
        try:
            result = await self._homes[home].exchange(
                region_request(head, self._signed(head, hop, home)),
                body,
                protected=True,
                may_send=lambda: True,
                response_timeout_seconds=wait_seconds + _LINK_SECONDS,
            )
        finally:
            self.in_progress -= 1
        match result:
            case UpstreamResponse():
                self._publish(home, RegionResult.ANSWERED)
                return passed_on(result, _verdict_in(result), region_response_headers(result.head.headers))
            case NotSent(reason, detail):
                self._publish(home, RegionResult.UNREACHED, f"{reason}: {detail}")
                detail = f"Region {home}, where this operation is at home, cannot be reached."
                return refuse(Verdict.STORE_UNAVAILABLE, shape=shape, operation_id=operation_id, detail=detail)
            case Lost(reason, detail):
                # It may run there. A repeat finds that out, as long as it has the same key.
                self._publish(home, RegionResult.LOST, f"{reason}: {detail}")
                detail = f"Region {home}, where this operation is at home, did not answer."
                return refuse(Verdict.IN_DOUBT, shape=shape, status=503, operation_id=operation_id, detail=detail)
            case _:
                assert_never(result)

    def _publish(self, home: str, result: RegionResult, detail: str = "") -> None:
        self._events.publish(RegionAsked(home, result, detail))

    def _signed(self, head: RequestHead, hop: Hop, home: str) -> bytes:
        at = b"%d" % int(self._wall_seconds())
        parts = (self._here.encode(), at, hop.address or _NO_PEER, hop.scheme)
        return b" ".join((*parts, self._signature(head, home, parts)))

    def _hop_by(self, values: Sequence[bytes], head: RequestHead) -> Hop | str:
        """The hop that the header gives, or why it is not believed."""
        given = values[0].split(b" ")
        if len(values) != 1 or len(given) != 5:
            return "its header is malformed"
        *parts, signature = given
        sender, at, address, scheme = parts
        if not hmac.compare_digest(signature, self._signature(head, self._here, parts)):
            return "its signature is wrong: `key` is the same in all regions, and `here` another one in each"
        # From here on, every part is what another gateway wrote.
        age_seconds = self._wall_seconds() - int(at)
        if abs(age_seconds) > _SIGNED_SECONDS:
            return f"it was signed {age_seconds:.0f} s ago by the clocks of the two"
        hop = hop_from(None if address == _NO_PEER else address.decode("ascii"), is_secure=scheme == b"https")
        return replace(hop, region=sender.decode("ascii"))

    def _signature(self, head: RequestHead, receiver: str, parts: Sequence[bytes]) -> bytes:
        content = framed(_DOMAIN, receiver.encode(), head.method, head.target, *parts)
        return hmac.digest(self._secret, content, "sha256").hex().encode()


def _verdict_in(response: UpstreamResponse) -> Verdict | None:
    """What the gateway at home decided, if it shows that."""
    values = header_values(response.head.headers, b"idempotency-status")
    try:
        return Verdict(values[0].decode("latin-1")) if values else None
    except ValueError:
        return None
