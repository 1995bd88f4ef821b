"""Forward-auth: asks an authorising service about a request before anything is claimed.

Owns the question, the reading of the response, and what of it may be remembered. The service gets a GET without body,
as proxies send it to their authorisation servers: method, URI and origin of the request in `X-Forwarded-*` headers, and
those headers of the request that are configured. Only 2xx with exactly one principal is a permission. 300 to 499 is the
service's own refusal, which the client gets as it is. Anything else is no decision, and says nothing about the caller.
A request with a header that many services read as another method or path is refused: the decision would be about
something else than what is executed.

A decision is remembered only where that is configured, for the very same question; a refusal never is, so that a
permission that was just given counts at once. Nothing of a question is kept but its digest, and nothing is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, assert_never

from gateway.config.leaf import encoded, lowered
from gateway.config.route import ForwardAuth as Service
from gateway.core.identity.body import digest
from gateway.core.identity.key import ForwardAuthScope, IdentityUnavailable, Network, ScopeUnsuitable
from gateway.core.message import RequestHead, ResponseHead, header_values
from gateway.core.verdict import Verdict
from gateway.observe.facts import AuthorizationDecided, Decision, Events
from gateway.protect.ambiguity import names_another, other_methods, other_targets
from gateway.protect.forwarding import authorization_request, response_headers
from gateway.protect.identification import Verification, Verified, Verifier
from gateway.protect.reply import Reply, Source
from gateway.protect.request import Request
from gateway.upstream import Lost, NotSent, TooLong, Upstream, UpstreamResponse

_LOG = logging.getLogger("gateway")

REFUSAL_BYTES_MAX: Final = 1024 * 1024
# The body of a permission says nothing. It is read so that its connection can be used again.
_PERMISSION_BYTES_MAX: Final = 64 * 1024
CONNECTIONS_MAX: Final = 128
# Permissions that are remembered, and the bytes of each.
_REMEMBERED_MAX: Final = 4096
_REMEMBERED_BYTES_MAX: Final = 4096
# A service that fails now and then is not reported more often.
_REPORT_SECONDS: Final = 10.0

_NO_DECISION: Final = "The service that decides about requests cannot be asked now."
_OTHER_READING: Final = "A header names another method or path than the one that permission is asked for."


class ForwardAuth(Verifier):
    """Asks one service, by a client of its own. Lives on one event loop."""

    def __init__(
        self,
        service: Service,
        scope: ForwardAuthScope | None,
        upstream: Upstream,
        events: Events,
        *,
        trusted_proxies: Sequence[Network],
        asked_max: int,
        clock: Callable[[], float],
    ) -> None:
        """Without a scope, any permission will do: its value is empty. `asked_max` bounds the requests that wait for a
        decision. `clock` counts seconds and never goes back."""
        self._scope, self._service, self._upstream, self._events = scope, service, upstream, events
        self._trusted_proxies = tuple(trusted_proxies)
        self._names = lowered(service.headers)
        self._copied = encoded(service.copy_)
        self._authority, self._target = service.url.service.authority.encode(), service.url.target.encode()
        self._asked_max = asked_max
        self._clock = clock
        self._asked = 0
        self._remembered: OrderedDict[bytes, tuple[float, Verified]] = OrderedDict()
        self._is_failing = False
        self._reported_seconds = -_REPORT_SECONDS

    async def close(self) -> None:
        await self._upstream.close()

    def known(self, request: Request) -> Verified | ScopeUnsuitable | None:
        """The permission that is remembered for this very question, or why there is no one question; None asks."""
        if _has_other_reading(request.head):
            return ScopeUnsuitable(_OTHER_READING)
        if not self._remembered:
            return None
        asked = _digest(self._question(request))
        until, permission = self._remembered.get(asked, (0.0, None))
        if permission is None:
            return None
        if self._clock() >= until:
            del self._remembered[asked]
            return None
        self._events.publish(AuthorizationDecided(Decision.REMEMBERED))
        return permission

    async def ask(self, request: Request) -> Verification:
        """Ask the service, within its timeout. Safe to cancel: the question has no effect."""
        question = self._question(request)
        asked_seconds = self._clock()
        found = await self._decision(question)
        if isinstance(found, str):
            self._events.publish(AuthorizationDecided(Decision.UNAVAILABLE))
            self._report(found)
            return IdentityUnavailable(_NO_DECISION)
        self._report(None)
        if isinstance(found, Verified):
            self._remember(question, found, asked_seconds)
        is_allowed = isinstance(found, Verified)
        self._events.publish(AuthorizationDecided(Decision.ALLOWED if is_allowed else Decision.REFUSED))
        return found

    # -- inside -------------------------------------------------------------------------------------------------------

    def _question(self, request: Request) -> RequestHead:
        return authorization_request(
            request.head,
            request.hop,
            self._trusted_proxies,
            authority=self._authority,
            target=self._target,
            names=self._names,
        )

    async def _decision(self, question: RequestHead) -> Verified | Reply | str:
        """The decision, or why there is none."""
        if self._asked >= self._asked_max:
            return "too many requests wait for it"
        self._asked += 1
        seconds = self._service.timeout
        try:
            async with asyncio.timeout(seconds):
                # As a protected one: it is never sent on a connection that the service may just be closing.
                response = await self._upstream.exchange(
                    question, protected=True, may_send=lambda: True, response_timeout_seconds=seconds
                )
                match response:
                    case NotSent(reason) | Lost(reason):
                        return f"no response ({reason})"
                    case UpstreamResponse():
                        with response:
                            return await self._read(response)
                    case _:
                        assert_never(response)
        except TimeoutError:
            return f"no response within {seconds:g} s"
        finally:
            self._asked -= 1

    async def _read(self, response: UpstreamResponse) -> Verified | Reply | str:
        head = response.head
        is_permission = 200 <= head.status < 300
        if not is_permission and not 300 <= head.status < 500:
            return f"it responded with {head.status}"
        body = await response.body.read_all(_PERMISSION_BYTES_MAX if is_permission else REFUSAL_BYTES_MAX)
        if isinstance(body, Lost):
            return f"its response broke off ({body.reason})"
        if is_permission:
            return self._permission(head)
        if isinstance(body, TooLong):
            return f"its refusal is longer than {REFUSAL_BYTES_MAX} bytes"
        headers = response_headers(head.headers)
        # It may be given to further callers with this credential.
        return Reply(head.status, head.reason, headers, body, Verdict.SCOPE_MISSING, source=Source.RECORD)

    def _permission(self, head: ResponseHead) -> Verified | str:
        value = b""
        if self._scope is not None:
            principals = header_values(head.headers, self._scope.principal.lower())
            if len(principals) > 1:
                return f"it named {len(principals)} principals"
            if not principals or not (principal := principals[0].strip(b" \t")):
                return "it named no principal"
            value = self._scope.value_of(principal)
        copied = ((name, each) for name in self._copied for each in header_values(head.headers, name.lower()))
        return Verified(value, tuple(copied))

    def _remember(self, question: RequestHead, permission: Verified, asked_seconds: float) -> None:
        """From when it was asked: the permission may have been withdrawn since."""
        seconds = self._service.cache
        size = len(permission.value) + sum(len(name) + len(value) for name, value in permission.headers)
        if seconds <= 0 or size > _REMEMBERED_BYTES_MAX:
            return
        asked = _digest(question)
        self._remembered.pop(asked, None)
        self._remembered[asked] = asked_seconds + seconds, permission
        if len(self._remembered) > _REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    def _report(self, fault: str | None) -> None:
        """Log the first failure, and when it is over."""
        now = self._clock()
        if fault is not None and now - self._reported_seconds >= _REPORT_SECONDS:
            self._reported_seconds, self._is_failing = now, True
            _LOG.warning("%s does not decide about requests, which are refused with 503: %s", self._service.url, fault)
        elif fault is None and self._is_failing:
            self._is_failing = False
            _LOG.info("%s decides about requests again", self._service.url)


def _has_other_reading(head: RequestHead) -> bool:
    return names_another(head) and bool(other_targets(head) or other_methods(head) - {head.method})


def _digest(question: RequestHead) -> bytes:
    return digest(b"question", *[part for header in question.headers for part in header])
