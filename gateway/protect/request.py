"""One request, from its head at the edge to its record: what came, what it is, and what became known of it.

The edge makes it, identification completes it, and the steps behind that fill in what operators are told. One task has
it at a time; an operation in flight has that of its first caller, and changes nothing of it.

Operators never see the query, a body or a credential: a path is enough to recognise a request in other logs. What they
see is short and printable, whatever was sent.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from gateway.core.identity.fingerprint import Digests
from gateway.core.identity.key import Key, KeyFault, Scope
from gateway.core.identity.peer import Hop
from gateway.core.immutable import immutable
from gateway.core.message import RequestHead, logged, trace_id_of
from gateway.core.operation import (
    CUT,
    Content,
    Fingerprint,
    Identity,
    ProbeTarget,
    Record,
    RequestInfo,
    Snapshot,
    is_withdrawn,
    trace_of_attempt,
)
from gateway.core.verdict import Claimable, Judgement, Match, Refuse, Verdict, compare, judge
from gateway.observe.facts import TraceContext
from gateway.protect.body import TakenBody
from gateway.protect.reply import RequestBody
from gateway.protect.route import Route

_HOST_CHARS_MAX: Final = 255
_PATH_CHARS_MAX: Final = 512
# What is shown as it is.
_HOST: Final = re.compile(rb"[!-~]{0,255}")
_PATH: Final = re.compile(rb"[!-~]{0,512}")
_NO_VALUES: Final = (b"",)


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """See the module. `arrived` and `wait_until` are on the loop's clock, `began` on the monotonic one, which is
    finer: the loop counts whole milliseconds under uvloop."""

    head: RequestHead
    body: RequestBody
    """As it comes from the client."""
    hop: Hop
    upgrades: bool = False
    """It asks for an upgrade, and may get one."""

    # -- what it is: by identification --------------------------------------------------------------------------------

    route: Route = field(init=False)
    taken: TakenBody = field(init=False)
    """Its whole body. Its owner closes it."""
    owner: object = field(init=False, default=None)
    """The operation that sends it, or its delivery; None for the request's own task."""
    key: Key | KeyFault = field(init=False)
    scope: Scope = field(init=False)
    identity: Identity = field(init=False)
    fingerprints: Sequence[Fingerprint] = field(init=False)
    """The current one first, then those that it may be recorded with under older keys."""
    digests: Digests | None = field(init=False, default=None)
    probe: ProbeTarget | None = field(init=False, default=None)
    """What to ask the upstream if the operation comes into doubt."""
    canonical_key: bytes | None = field(init=False, default=None)
    """The key as sent where a route sends again."""
    is_async: bool = field(init=False, default=False)
    """It is accepted and delivered later, so its caller does not wait."""
    lane: bytes | None = field(init=False, default=None)
    """What it is delivered in order with."""
    version: bytes = field(init=False, default=b"")
    """A digest of the version of the API that it expects its response in, empty where none is known."""
    content: Content | None = field(init=False, default=None)
    """By what a repeat under another key is recognised, where the route looks for those and the request has it."""

    # -- what became known of it: for operators, and for its own waits -------------------------------------------------

    arrived: float = field(init=False, default=0.0)
    began: float = field(init=False, default_factory=time.monotonic)
    operation_id: UUID | None = field(init=False, default=None)
    upstream_status: int | None = field(init=False, default=None)
    upstream_seconds: float | None = field(init=False, default=None)
    attempt: int = field(init=False, default=0)
    wait_until: float | None = field(init=False, default=None)
    """When its time to wait for other requests ends; None until its first wait."""
    waits_from_seconds: float = field(init=False, default=0.0)
    """How long after its arrival that wait began."""
    preferred: int | None = field(init=False, default=None)
    """The caller's preference, in seconds, if that decided how long it waits."""
    is_executed: bool = field(init=False, default=False)
    """Whether it is the request that was sent, or was to be."""
    is_reported_there: bool = field(init=False, default=False)
    """Whether a gateway of another region replied to it, and has reported that."""
    context: TraceContext | None = field(init=False, default=None)
    origin: str | None = field(init=False, default=None)

    @property
    def content_to_hold(self) -> Content | None:
        """What its claim or acceptance holds, where the route refuses repeats."""
        return self.content if self.route.repeats is not None and self.route.repeats.refuses else None

    def differences(self, record: Record) -> tuple[str, ...]:
        """In what it differs from the request of this record, as far as that can be known."""
        if self.digests is None or record.fingerprint is None:
            return ()
        operation_id = self.identity.operation_id
        return tuple(self.route.fingerprinter.differences(self.digests, record.fingerprint, operation_id))

    def why_incomparable(self, record: Record) -> str | None:
        """Why nobody can tell whether it is the request of this record; None where it is known."""
        recorded = record.fingerprint
        if recorded is None or compare(recorded, self.fingerprints)[0] is not Match.UNKNOWN or self.differences(record):
            return None
        return f"recorded under fingerprint key '{recorded.key_id}' or settings that this route does not have"

    def judge(self, snapshot: Snapshot) -> Judgement:
        """Rules 9 to 19 for this request. An event that was called off is not accepted anew: its sender may repeat it
        only because an acknowledgement was lost."""
        route = self.route
        judgement = judge(
            snapshot,
            self.fingerprints,
            accept_recipe_change=route.accepts_recipe_change,
            version=self.version if route.keep.is_version_strict else None,
            is_fetched=route.keep.is_fetched,
        )
        record = snapshot.record
        is_event = route.inbox is not None and isinstance(judgement, Claimable)
        if is_event and record is not None and is_withdrawn(record):
            return Refuse(Verdict.WITHDRAWN, record)
        return judgement

    def saw(self, record: Record | None) -> None:
        """The reply is from this record, which may have no request: a copy of it has none."""
        self.attempt = 0 if record is None else record.attempts
        if record is not None and self.context is not None:
            self.origin = trace_of_attempt(record) or self.origin


@immutable
class Untouched:
    """The coordinator's decision not to protect a request: forward it unchanged, streamed.

    `request` may have a body that has been read already; `verdict` is why it is not protected.
    """

    request: Request
    verdict: Verdict


# -- what operators see of it ------------------------------------------------------------------------------------------


def scope_name(scope_digest: bytes) -> str:
    """What distinguishes callers for operators: the beginning of the scope's digest."""
    return scope_digest[:6].hex()


def request_info(head: RequestHead) -> RequestInfo:
    """The request in short; a value over its limit ends in `CUT`."""
    by_name = head.headers.by_name
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
