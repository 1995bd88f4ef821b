"""What enforcement would have done with requests that were only observed.

An observed request is passed through like any unprotected one, and nothing is claimed for it. This module builds, from
what was seen of the requests with one key, the record that enforcement would have left: by `lifecycle.step` and the
`outcome` functions, and judges each request by `verdict.judge` on it. There are no rules of its own.

A request that enforcement would not have executed leaves no trace in that record, although it did run. Times are those
of the gateways' hosts, which may differ by a little: where two requests of two hosts overlap, the order is theirs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from enum import StrEnum
from typing import Any, Final, assert_never
from uuid import UUID

import orjson

from gateway.core import immutable
from gateway.core.lifecycle import settle, step
from gateway.core.message import StoredResponse
from gateway.core.operation import (
    MICROSECONDS,
    Abandon,
    Applied,
    Claim,
    Command,
    Complete,
    Event,
    Fingerprint,
    Forget,
    Identity,
    Record,
    Release,
    Snapshot,
    Takeover,
)
from gateway.core.outcome import (
    Meaning,
    Outcome,
    StatusPolicy,
    conclude_answered,
    conclude_not_sent,
    conclude_unknown,
)
from gateway.core.verdict import Claimable, Doubt, Fetch, Judgement, Refuse, Replay, Undelivered, Verdict, Wait, judge

KEEP_US: Final = 86_400 * MICROSECONDS
"""How long an observation is kept."""
REKEYED_US: Final = 600 * MICROSECONDS
"""Within which time the same content under a new key counts as a client that makes new keys for its retries."""
HISTORY_MAX: Final = 200
"""The most observations of one key that a judgement looks at, the oldest first: those decide what the record is."""


class ExchangeResult(StrEnum):
    """How the exchange with the service ended. The first three are the meanings of a response."""

    FINAL = Meaning.FINAL
    RETRYABLE = Meaning.RETRYABLE
    IN_DOUBT = Meaning.IN_DOUBT
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"


@immutable
class Exchange:
    """What an observed request became at the service. `is_kept`: enforcement would have stored the body."""

    ended_us: int
    result: ExchangeResult
    status: int = 0
    is_kept: bool = False
    names_resource: bool = False
    replay_us: int = 0
    remember_us: int = 0


@immutable
class Observation:
    """One observed request. `operation_id` is None where enforcement would have refused or passed it before it had an
    identity: `early` is that verdict. `content` is a digest of caller and fingerprint."""

    entry: UUID
    route: str
    began_us: int
    operation_id: UUID | None = None
    fingerprints: tuple[Fingerprint, ...] = ()
    content: bytes = b""
    version: bytes = b""
    exchange: Exchange | None = None
    early: Verdict | None = None


@immutable
class Finding:
    """What enforcement would have done. `is_repeat`: an equal request under a used key, which would not have run again.
    `is_rekeyed`: the same content came under another key shortly before."""

    verdict: Verdict
    is_refused: bool = False
    is_repeat: bool = False
    is_rekeyed: bool = False


@immutable
class Enforcement:
    """What of a route decides about its requests."""

    policy: StatusPolicy
    accepts_recipe_change: bool = False
    is_version_strict: bool = False
    is_fetched: bool = False
    wait_us: int = 0


def findings(history: Sequence[Observation], enforcement: Enforcement) -> list[Finding]:
    """The finding for each observation of one operation, in the order in which they began."""
    would_be = _WouldBe(enforcement)
    return [would_be.request(seen) for seen in history]


def judge_new(
    before: Sequence[Observation],
    new: Mapping[UUID, Observation],
    shared: Sequence[tuple[bytes, UUID, int]],
    enforcements: Mapping[str, Enforcement],
) -> dict[UUID, tuple[Observation, Finding]]:
    """The findings for the new observations, and for those earlier ones of the same operations where they changed.
    `shared` says when contents of the new ones were last seen, and of which operation."""
    judged: dict[UUID, tuple[Observation, Finding]] = {}
    histories: dict[UUID, dict[UUID, Observation]] = {}
    for seen in (*before, *new.values()):
        if seen.operation_id is None:
            verdict = seen.early or Verdict.KEY_MISSING
            judged[seen.entry] = (seen, Finding(verdict, is_refused=verdict is not Verdict.UNKEYED))
        else:
            histories.setdefault(seen.operation_id, {})[seen.entry] = seen
    content_seen: dict[bytes, list[tuple[int, UUID]]] = {}
    for content, operation_id, last_us in shared:
        content_seen.setdefault(content, []).append((last_us, operation_id))
    for seen in new.values():
        if seen.operation_id is not None:
            content_seen.setdefault(seen.content, []).append((seen.began_us, seen.operation_id))
    for operation_id, entries in histories.items():
        history = sorted(entries.values(), key=lambda seen: (seen.began_us, seen.entry))
        enforcement = next(enforcements[seen.route] for seen in history if seen.entry in new)
        known = [seen for seen in history if seen.entry not in new]
        earlier = {seen.entry: finding for seen, finding in zip(known, findings(known, enforcement), strict=True)}
        for number, (seen, finding) in enumerate(zip(history, findings(history, enforcement), strict=True)):
            if earlier.get(seen.entry) == finding:
                continue
            is_rekeyed = number == 0 and any(
                other != operation_id and seen.began_us - REKEYED_US <= at_us < seen.began_us
                for at_us, other in content_seen.get(seen.content, ())
            )
            judged[seen.entry] = (seen, replace(finding, is_rekeyed=is_rekeyed))
    return judged


class _WouldBe:
    """The record that enforcement would have, and the observed request that holds its claim."""

    def __init__(self, enforcement: Enforcement) -> None:
        self._enforcement = enforcement
        self._record: Record | None = None
        self._running: Exchange | None = None
        self._is_first = True
        self._version = b""
        self._tokens = itertools.count(1)

    def request(self, seen: Observation) -> Finding:
        now_us, enforcement = seen.began_us, self._enforcement
        running = self._running
        if running is not None and running.ended_us <= now_us:
            self._end(running)
            running = None
        self._record = settle(self._record, now_us)
        judgement = judge(
            Snapshot(self._record, now_us),
            seen.fingerprints,
            accept_recipe_change=enforcement.accepts_recipe_change,
            version=seen.version if enforcement.is_version_strict else None,
            is_fetched=enforcement.is_fetched,
        )
        return self._finding(judgement, seen, running)

    def _finding(self, judgement: Judgement, seen: Observation, running: Exchange | None) -> Finding:
        match judgement:
            case Refuse(verdict):
                return Finding(verdict, is_refused=True, is_repeat=verdict is not Verdict.KEY_REUSED)
            case Replay():
                return Finding(Verdict.REPLAYED, is_repeat=True)
            case Fetch():
                return Finding(Verdict.FETCHED, is_repeat=True)
            case Wait():
                left_us = 0 if running is None else running.ended_us - seen.began_us
                is_refused = left_us > self._enforcement.wait_us
                return Finding(Verdict.IN_FLIGHT, is_refused=is_refused, is_repeat=True)
            case Doubt(record, is_same):
                if is_same and self._enforcement.policy.resends:
                    return self._executed(seen, None, record.token)
                return Finding(Verdict.IN_DOUBT, is_refused=True, is_repeat=is_same)
            case Claimable(fingerprint, read_token):
                return self._executed(seen, fingerprint, read_token)
            case Undelivered():
                raise AssertionError("a route that accepts requests is not observed")
            case _:
                assert_never(judgement)

    def _executed(self, seen: Observation, fingerprint: Fingerprint | None, read_token: int | None) -> Finding:
        """It would have been executed: on a claim, or without a fingerprint on a takeover."""
        exchange, record = seen.exchange, self._record
        if exchange is None or seen.operation_id is None:
            raise AssertionError("only what reached the service is judged")
        self._is_first = record is None or record.fingerprint is None
        lease_us = max(exchange.ended_us - seen.began_us, 0) + 1
        command: Command
        if fingerprint is None:
            command = Takeover(seen.operation_id, read_token or 0, seen.entry, "", lease_us)
        else:
            identity = Identity(seen.operation_id, seen.route, seen.route, b"", b"")
            command = Claim(identity, seen.entry, "", fingerprint, lease_us, read_token)
        self._apply(command, seen.began_us)
        self._version = seen.version
        self._running = replace(exchange, ended_us=max(exchange.ended_us, seen.began_us))
        return Finding(self._outcome(exchange).verdict)

    def _outcome(self, exchange: Exchange) -> Outcome:
        record, result = self._record, exchange.result
        carries_doubt = record is not None and record.carries_doubt
        match result:
            case ExchangeResult.NOT_SENT:
                return conclude_not_sent(carries_doubt=carries_doubt)
            case ExchangeResult.UNKNOWN:
                return conclude_unknown()
        # The service's own headers and body were read when the response came. What they mean is declared here.
        meaning = {b"idempotency-outcome": [result.value.replace("_", "-").encode()]}
        return conclude_answered(
            exchange.status,
            meaning,
            self._enforcement.policy,
            carries_doubt=carries_doubt,
            is_first_attempt=self._is_first,
            is_stored=exchange.is_kept,
        )

    def _end(self, exchange: Exchange) -> None:
        """Apply the outcome of the request that holds the claim."""
        record, self._running = self._record, None
        if record is None:
            raise AssertionError("there is no claim")
        ids = (record.identity.operation_id, record.token, record.attempt_id)
        match self._outcome(exchange).event:
            case Event.COMPLETE:
                response = StoredResponse(exchange.status, b"", (), b"" if exchange.is_kept else None, self._version)
                windows = exchange.replay_us, exchange.remember_us
                resource = "/" if exchange.names_resource else None
                self._apply(Complete(*ids, response, *windows, resource), exchange.ended_us)
            case Event.RELEASE:
                self._apply(Release(*ids, exchange.remember_us), exchange.ended_us)
            case Event.FORGET:
                self._apply(Forget(*ids), exchange.ended_us)
            case Event.ABANDON:
                self._apply(Abandon(*ids, exchange.result.value), exchange.ended_us)
            case event:
                raise AssertionError(f"no attempt ends in {event}")

    def _apply(self, command: Command, now_us: int) -> None:
        result, self._record = step(self._record, command, now_us, self._tokens.__next__)
        if not isinstance(result, Applied):
            raise AssertionError(f"{type(command).__name__} is not allowed: {result}")


# -- as the store keeps it --------------------------------------------------------------------------------------------


def pack(seen: Observation) -> bytes:
    """What the store keeps of an observation beside its own columns: digests, numbers and words of the program."""
    return orjson.dumps(
        {
            "fingerprints": [[f.recipe.hex(), f.digest.hex(), f.raw.hex(), f.key_id] for f in seen.fingerprints],
            "version": seen.version.hex(),
            "exchange": None if seen.exchange is None else astuple(seen.exchange),
        }
    )


def unpack(entry: UUID, route: str, began_us: int, operation_id: UUID, content: bytes, packed: bytes) -> Observation:
    kept: dict[str, Any] = orjson.loads(packed)
    ended_us, result, *rest = kept["exchange"]
    fingerprints = tuple(
        Fingerprint(bytes.fromhex(recipe), bytes.fromhex(digest), bytes.fromhex(raw), key_id)
        for recipe, digest, raw, key_id in kept["fingerprints"]
    )
    exchange = Exchange(ended_us, ExchangeResult(result), *rest)
    version = bytes.fromhex(kept["version"])
    return Observation(entry, route, began_us, operation_id, fingerprints, content, version, exchange)
