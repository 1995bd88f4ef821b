"""Rules 4 to 7: what a request is, and whose.

Owns the way from a request as it came in to an operation with fingerprints: the key, the scope, the whole body, the
digests. It claims nothing and asks no store; whatever it refuses has left nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import BinaryIO, Final, TypeVar, assert_never
from uuid import UUID

from gateway.core.identity.canonical import Body
from gateway.core.identity.fingerprint import Digests, Fingerprinter
from gateway.core.identity.key import Key, KeyFault, KeySpec, Unquote, find_key, key_places, needs_body
from gateway.core.identity.operation_id import identity_of
from gateway.core.identity.scope import Scope, ScopeMissing, ScopeUnsuitable, scope_of
from gateway.core.immutable import immutable
from gateway.core.message import Headers, RequestHead, field_values
from gateway.core.operation import Fingerprint, Identity, ProbeTarget
from gateway.core.recovery import Probe, Resend, probe_values, render_probe
from gateway.core.verdict import Word
from gateway.protect.hop import Hop
from gateway.protect.problem import refuse
from gateway.protect.reply import Incoming, Reply, Untouched
from gateway.protect.route import Route
from gateway.protect.spool import Spool, SpoolFailed, TakenBody, WholeBody
from gateway.protect.structured_fields import unquote

_LOG = logging.getLogger("gateway")

# RFC 9110 section 11.6.1 wants a challenge with every 401. Which scheme the service behind takes is not known here.
_CHALLENGE: Final = b'Bearer realm="service"'

# A longer body is digested in a thread.
INLINE_BYTES_MAX: Final = 16 << 10

Result = TypeVar("Result")


@immutable
class KeyedRequest:
    """A request that passed rules 1 to 7: what it is, whose, and how it compares with others.

    `fingerprints` is what it is recorded with, then what it may have been recorded with under older keys. `probe` is
    what to ask, should it come into doubt. `canonical_key` is what its key is sent as where a route sends again.
    """

    head: RequestHead
    body: TakenBody
    hop: Hop
    route: Route
    identity: Identity
    fingerprints: Sequence[Fingerprint]
    probe: ProbeTarget | None = None
    canonical_key: bytes | None = None


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
        at_once = self.identify_now(incoming, route)
        if at_once is not None:
            return at_once
        body = await self._take(incoming, route)
        if isinstance(body, Reply):
            return body
        answer: KeyedRequest | Reply | Untouched | None = None
        try:
            key = await find_key_in(route.key, incoming.head.headers, body.content, unquote)
            scope = scope_of(route.scope, incoming.head.headers, incoming.hop.peer)
            found = _key_and_scope(incoming, route, key, scope, body)
            if not isinstance(found, tuple):
                answer = found
                return answer
            key, scope = found
            digests = await digest_body(route.fingerprinter, incoming.head, body.content, body.digest)
            answer = self._keyed(incoming, route, key, scope, body, digests)
            return answer
        finally:
            if answer is None or isinstance(answer, Reply):
                body.close()

    def identify_now(self, incoming: Incoming, route: Route) -> KeyedRequest | Reply | Untouched | None:
        """As `identify`, for a request that is refused by its head, or is short and here whole.

        None where something has to be waited for; then nothing of the body was taken.
        """
        headers = incoming.head.headers
        key = None
        is_key_in_body = needs_body(route.key)
        scope = scope_of(route.scope, headers, incoming.hop.peer)
        if not is_key_in_body:
            key = find_key(route.key, headers, None, unquote)
            if key is None:
                return _without_key(incoming, route)
            if not isinstance(scope, Scope):
                return _refuse_scope(scope, route)
        length = incoming.body.length
        if length is None or length > min(INLINE_BYTES_MAX, route.body_bytes_max, route.spool_over_bytes):
            return None
        content = incoming.body.whole()
        if content is None:
            return None
        if is_key_in_body:
            key = find_key(route.key, headers, content, unquote)
        body = TakenBody(content, len(content))
        found = _key_and_scope(incoming, route, key, scope, body)
        if not isinstance(found, tuple):
            return found
        key, scope = found
        return self._keyed(incoming, route, key, scope, body, route.fingerprinter.digests(incoming.head, content))

    async def _take(self, incoming: Incoming, route: Route) -> TakenBody | Reply:
        """Rule 6."""
        try:
            body = await self._spool.take(
                incoming.body, bytes_max=route.body_bytes_max, spool_over_bytes=route.spool_over_bytes
            )
        except SpoolFailed as error:
            _LOG.error("%s", error)
            detail = "The gateway has no room for the body."
            return refuse(Word.OVERLOADED, shape=route.shape, detail=detail)
        if body is None:
            detail = f"The limit is {route.body_bytes_max} bytes."
            return refuse(Word.BODY_TOO_LARGE, shape=route.shape, detail=detail)
        return body

    def _keyed(
        self, incoming: Incoming, route: Route, key: Key, scope: Scope, body: TakenBody, digests: Digests
    ) -> KeyedRequest:
        """What the request is, now that all of it is here and nothing is against it."""
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
            hop=incoming.hop,
            route=route,
            identity=identity,
            fingerprints=route.fingerprinter.alternatives(digests),
            probe=_probe_target(incoming.head, route, identity.operation_id, key),
            canonical_key=key.field_value if isinstance(route.recovery, Resend) else None,
        )


def _key_and_scope(
    incoming: Incoming,
    route: Route,
    key: Key | KeyFault | None,
    scope: Scope | ScopeMissing | ScopeUnsuitable,
    body: TakenBody,
) -> tuple[Key, Scope] | Reply | Untouched:
    """Rules 4, 5 and 7, now that the body is here too: what the request is known by, where nothing is against it."""
    if key is None:
        return _without_key(replace(incoming, body=WholeBody(body)), route)
    if not isinstance(scope, Scope):
        return _refuse_scope(scope, route)
    if isinstance(key, KeyFault):
        return refuse(Word.KEY_INVALID, shape=route.shape, detail=key.detail)
    return key, scope


def _without_key(incoming: Incoming, route: Route) -> Reply | Untouched:
    """Rule 4."""
    if route.is_key_required:
        detail = f"{key_places(route.key)} is missing."
        return refuse(Word.KEY_MISSING, shape=route.shape, detail=detail)
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
    values = probe_values(route.recovery, head.target, operation_id, key.text)
    hosts = field_values(head.headers, b"host")
    forwarding = route.target.forwarding
    return render_probe(route.recovery, values, forwarding.host or (hosts[0] if hosts else forwarding.authority))


# What is read out of a whole body: a short one where it stands, a long one, or one in a file, in a thread. The result
# depends on the bytes alone, never on where they were kept.


async def digest_body(
    fingerprinter: Fingerprinter, head: RequestHead, body: bytes | BinaryIO, body_sha256: bytes | None = None
) -> Digests:
    """As `Fingerprinter.digests`, for a body in memory or one that is all of a file, flushed and unchanged meanwhile.

    Cancelled, it leaves a thread that ends by itself and holds the file's content, not the file: the caller may close
    it.
    """
    return await _with_body(body, lambda content: fingerprinter.digests(head, content, body_sha256))


async def find_key_in(
    spec: KeySpec, headers: Headers, body: bytes | BinaryIO, unquote: Unquote
) -> Key | KeyFault | None:
    """As `core.key.find_key`, for a key that is taken from the body."""
    return await _with_body(body, lambda content: find_key(spec, headers, content, unquote))


async def _with_body(body: bytes | BinaryIO, use: Callable[[Body], Result]) -> Result:
    if isinstance(body, bytes):
        return use(body) if len(body) <= INLINE_BYTES_MAX else await asyncio.to_thread(use, body)
    if os.fstat(body.fileno()).st_size == 0:
        return use(b"")
    # Mapped before the thread starts: the mapping is its own, whatever becomes of the file object.
    mapped = mmap.mmap(body.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return await asyncio.to_thread(_use_and_close, mapped, use)
    except asyncio.CancelledError:
        # The thread may not have started, and then never will. One that reads closes it when it is done.
        with contextlib.suppress(BufferError):
            mapped.close()
        raise


def _use_and_close(mapped: mmap.mmap, use: Callable[[Body], Result]) -> Result:
    with mapped:
        return use(mapped)
