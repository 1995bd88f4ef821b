"""Who the caller of a request is: the one place of a process that finds the scope of a request.

A scope that is taken from headers is found at once. A part that has to be verified is given to its verifier, which may
need a key that has to be fetched, or the word of another service; then the request waits. Nothing is claimed and
nothing of the body is read meanwhile. A verifier reports a failure of its own as `IdentityUnavailable`: that says
nothing about the caller.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import Final, Protocol, assert_never

from gateway.config.authorization import ForwardAuth
from gateway.core.identity.scope import (
    IdentityUnavailable,
    Scope,
    ScopeMissing,
    ScopeSpec,
    ScopeUnsuitable,
    Unverified,
    VerifiedSpec,
)
from gateway.core.immutable import immutable
from gateway.core.message import Headers, values_by_name
from gateway.core.verdict import Verdict
from gateway.protect.problem import PROBLEM, Shape, refuse
from gateway.protect.reply import Reply
from gateway.protect.request import Request

# RFC 9110 section 11.6.1 wants a challenge with every 401. The scheme that the service takes is not known here.
_CHALLENGE: Final = b'Bearer realm="service"'
# RFC 6750 section 3. What stands in it has no quotes and no backslashes.
_INVALID_TOKEN: Final = b'Bearer error="invalid_token", error_description="%b"'


@immutable
class Verified:
    """What a verifier found out. `value` is framed and goes into the scope; `headers` go to the service, in place of
    the client's of the same names."""

    value: bytes
    headers: Headers = ()


@immutable
class Caller:
    """A caller that is known. `headers` as in `Verified`."""

    scope: Scope
    headers: Headers = ()


# A `Reply` is another service's own refusal, to be passed on as it is.
Unidentified = ScopeMissing | ScopeUnsuitable | IdentityUnavailable | Reply
Verification = Verified | Unidentified


class Verifier(Protocol):
    """Verifies one part of a scope. Raises nothing but cancellation."""

    def start(self) -> None:
        """Begin what runs in the background. Waits for nothing, and needs nobody to respond."""

    async def close(self) -> None:
        """End that, and release connections. Safe to repeat."""

    def known(self, request: Request) -> Verification | None:
        """What is known without waiting; None where `ask` has to be awaited."""

    async def ask(self, request: Request) -> Verification:
        """What is found out; it has a limit of its own to how long that takes."""


class Closable(Protocol):
    """A verifier, or what verifiers share."""

    async def close(self) -> None:
        """Safe to repeat."""


class Callers:
    """The callers of one configuration. Lives on one event loop."""

    def __init__(
        self,
        verifiers: Mapping[VerifiedSpec | ForwardAuth, Verifier],
        made: Mapping[Hashable, Closable] = MappingProxyType({}),
    ) -> None:
        """`verifiers` has one for each verified part of every scope that is asked for, and for each service that is
        asked for a permission alone. `made` has all that is to be closed, by what it is made of."""
        self.verifiers = verifiers
        self.made = made

    def start(self) -> None:
        """Let the verifiers begin what they do in the background."""
        for verifier in self.verifiers.values():
            verifier.start()

    async def close(self) -> None:
        """Close all that is made, even if closing some of it fails."""
        async with AsyncExitStack() as stack:
            for each in self.made.values():
                stack.push_async_callback(each.close)

    async def find_caller(self, spec: ScopeSpec, request: Request) -> Caller | Unidentified:
        """The caller, once each part is verified; waits only for what has to be asked. Safe to cancel."""
        verified: dict[VerifiedSpec, bytes] = {}
        headers: Headers = ()
        by_name = values_by_name(request.head.headers)
        while isinstance(found := spec.find_scope(by_name, request.hop.peer, verified), Unverified):
            verifier = self.verifiers[found.part]
            verification = verifier.known(request) or await verifier.ask(request)
            if not isinstance(verification, Verified):
                return verification
            verified[found.part] = verification.value
            headers += verification.headers
        return Caller(found, headers) if isinstance(found, Scope) else found

    async def authorize(self, service: ForwardAuth, request: Request) -> Verified | Unidentified:
        """A permission of this service, with the headers that come with it, or what takes its place. Safe to cancel."""
        verifier = self.verifiers[service]
        return verifier.known(request) or await verifier.ask(request)


def refuse_caller(found: Unidentified, shape: Shape = PROBLEM) -> Reply:
    """Rule 5: the reply to a request whose caller is not known."""
    match found:
        case ScopeMissing(detail, is_credential, is_token):
            challenge = _INVALID_TOKEN % detail.encode() if is_token else _CHALLENGE if is_credential else None
            return refuse(Verdict.SCOPE_MISSING, shape=shape, detail=detail, authenticate=challenge)
        case ScopeUnsuitable(detail):
            return refuse(Verdict.SCOPE_UNSUITABLE, shape=shape, detail=detail)
        case IdentityUnavailable(detail, retry_after_seconds):
            return refuse(
                Verdict.IDENTITY_UNAVAILABLE, shape=shape, detail=detail, retry_after_seconds=retry_after_seconds
            )
        case Reply():
            return found
        case _:
            assert_never(found)
