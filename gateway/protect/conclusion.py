"""Turns the result of an upstream exchange into a command for the store and the replies that follow once it is applied.

Pure: values in, values out. `attempt` does the waiting.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from gateway.core.immutable import immutable
from gateway.core.message import Headers, ResponseHead, StoredResponse
from gateway.core.operation import Abandon, Complete, Event, Forget, OutcomeCommand, Record, Release
from gateway.core.outcome import Outcome, conclude_answered, conclude_not_sent, conclude_unknown, windows_us
from gateway.core.recovery import answered_doubt, for_repeats
from gateway.core.replay import kept_headers, stored_response
from gateway.core.verdict import Verdict
from gateway.protect.forwarding import response_headers
from gateway.protect.identification import KeyedRequest
from gateway.protect.problem import refuse
from gateway.protect.reply import Reply, ResponseStream
from gateway.upstream import SentNothing, Unknown, status_of


@immutable
class Conclusion:
    """What is known of an attempt.

    `command` records it. Once that is applied, `reply` goes to the first caller and `shared` to the duplicates that
    waited; where `shared` is None, their replies follow from the record. `detail` is for the log.
    """

    outcome: Outcome
    command: OutcomeCommand
    reply: Reply
    shared: Reply | None
    detail: str
    upstream_seconds: float | None = None
    upstream_status: int | None = None


@immutable
class ClaimedRequest:
    """A request and the claim under which it is executed. `is_first`: as in `claiming.Granted`."""

    request: KeyedRequest
    record: Record
    is_first: bool

    def not_sent(self, reason: SentNothing, detail: str) -> Conclusion:
        """No byte was sent."""
        outcome = conclude_not_sent(carries_doubt=self.record.carries_doubt)
        why = f"{reason}: {detail}"
        # In doubt because of an earlier attempt. A 503 would mean that this attempt's response is yet to be recorded.
        status = 502 if outcome.verdict is Verdict.IN_DOUBT else status_of(reason)
        reply = replace(self.refuse(outcome.verdict, status), why=why)
        return Conclusion(outcome, self._command(outcome, reason), reply, reply, why)

    def unknown(
        self, reason: Unknown, detail: str, upstream_seconds: float, upstream_status: int | None = None
    ) -> Conclusion:
        """A byte may have been sent, and no complete response came."""
        outcome = conclude_unknown()
        reply = self.refuse(outcome.verdict, status_of(reason))
        return Conclusion(
            outcome,
            self._command(outcome, reason if upstream_status is None else answered_doubt(upstream_status, reason)),
            reply,
            reply,
            f"{reason}: {detail}",
            upstream_seconds,
            upstream_status,
        )

    def answered(
        self, head: ResponseHead, body: bytes | ResponseStream, length: int | None, upstream_seconds: float
    ) -> Conclusion:
        """A response came: whole, as bytes, or only its head where the body is not kept."""
        method, route = self.request.head.method, self.request.route
        is_stored = isinstance(body, bytes)
        outcome = conclude_answered(
            head.status,
            head.headers,
            route.policy,
            carries_doubt=self.record.carries_doubt,
            is_first_attempt=self.is_first,
            is_stored=is_stored,
        )
        stored = stored_response(method, head, body if isinstance(body, bytes) else None, route.keep)
        shared = None
        if is_stored and outcome.event in (Event.RELEASE, Event.ABANDON):
            shared = Reply(
                head.status, head.reason, kept_headers(method, head, route.keep), body, outcome.verdict, length
            )
        return Conclusion(
            outcome,
            self._command(outcome, answered_doubt(head.status), stored, head.headers),
            Reply(head.status, head.reason, response_headers(head.headers), body, outcome.verdict, length),
            shared,
            f"answered {head.status}",
            upstream_seconds,
            head.status,
        )

    def release(self) -> Release | Abandon:
        """Nothing was sent under this claim."""
        if self.record.carries_doubt:
            return self.abandon("interrupted")
        return Release(*self._ids, self.request.route.retention.remember_us)

    def abandon(self, doubt: str) -> Abandon:
        """Something may have been sent under this claim."""
        return Abandon(*self._ids, doubt)

    def refuse(self, verdict: Verdict, status: int) -> Reply:
        """A problem document about this operation."""
        return refuse(
            verdict,
            shape=self.request.route.shape,
            status=status,
            operation_id=self.request.identity.operation_id,
            record=self.record,
            recovery=for_repeats(self.request.route.recovery, self.record, is_same=True),
        )

    @property
    def _ids(self) -> tuple[UUID, int, UUID]:
        return self.request.identity.operation_id, self.record.token, self.record.attempt_id

    def _command(
        self,
        outcome: Outcome,
        doubt: str,
        stored: StoredResponse | None = None,
        headers: Headers = (),
    ) -> OutcomeCommand:
        match outcome.event:
            case Event.COMPLETE if stored is not None:
                retention = self.request.route.retention
                windows = windows_us(headers, retention.replay_us, retention.remember_us)
                return Complete(*self._ids, stored, *windows, granted=self.record)
            case Event.RELEASE:
                return self.release()
            case Event.FORGET:
                return Forget(*self._ids)
            case Event.ABANDON:
                return self.abandon(doubt)
            case event:
                raise ValueError(f"no attempt ends in {event}")


def without_response(conclusion: Conclusion) -> Conclusion | None:
    """The conclusion without the response, for a store that can never take it; None when nothing can be left out."""
    command = conclusion.command
    if not isinstance(command, Complete) or command.response == _status_only(command.response):
        return None
    outcome = Outcome(Event.COMPLETE, Verdict.RESPONSE_NOT_STORED)
    return replace(
        conclusion,
        outcome=outcome,
        command=replace(command, response=_status_only(command.response)),
        reply=replace(conclusion.reply, verdict=outcome.verdict),
    )


def _status_only(response: StoredResponse) -> StoredResponse:
    return StoredResponse(response.status, b"", (), None)
