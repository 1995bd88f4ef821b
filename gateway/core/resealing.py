"""Puts what is kept under the current key: records, outcomes in journals, kept requests, audits, and why sinks are
suspended and events were not published. For the part of an event, see `outbox`.

`confidential` owns which parts there are. What is under the current key already is opened, too, because another key may
have had that id, and stays as it is. So a pass that was interrupted is simply repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from gateway.core.confidential import (
    Sealing,
    encoded,
    is_sealed_response,
    of_request,
    opened_failure,
    opened_text,
    opened_texts,
    sealed_failure,
    sealed_identity,
    sealed_probe,
    sealed_request,
    sealed_resource,
    sealed_texts,
)
from gateway.core.message import StoredResponse
from gateway.core.operation import Abandon, Audit, Command, Complete, Record, SealedRequest
from gateway.core.sealing import KeyRing, Unopenable

C = TypeVar("C", bound=Command)
P = TypeVar("P")


class Resealing(Sealing):
    """A sealing that also opens and seals again. What cannot be opened stays as it is, with one of the `reasons`."""

    def __init__(self, sealing: Sealing) -> None:
        """The keys of `sealing`."""
        super().__init__(sealing.ring)
        self.reasons: list[str] = []

    def resealed(self, record: Record) -> Record:
        """The record as it is stored, with every part under the current key; the same object if all of them are."""
        identity, probe, request, response = record.identity, record.probe, record.request, record.response
        of, token = identity.operation_id, record.token
        changed: dict[str, Any] = {
            "identity": self._again(identity, identity.key, self._opened_identity, sealed_identity),
            "probe": self._again(
                probe, None if probe is None else probe.target,
                lambda old: self._opened_probe(old, of), lambda ring, clear: sealed_probe(ring, clear, of),
            ),
            "request": self._again(
                request, None if request is None else request.path,
                lambda old: self._opened_request(old, of), lambda ring, clear: sealed_request(ring, clear, of),
            ),
            "response": self._response_again(response, of, token),
            "resource": self._resource_again(record.resource, of),
        }  # fmt: skip
        is_same = all(part is getattr(record, name) for name, part in changed.items())
        return record if is_same else replace(record, **changed)

    def resealed_outcome(self, command: C) -> C:
        """As `resealed`, for a command that a journal keeps."""
        found: Any = command
        if isinstance(command, Complete | Abandon):
            resource = self._resource_again(command.resource, command.operation_id)
            if resource is not command.resource:
                found = replace(found, resource=resource)
        if isinstance(command, Complete):
            response = self._response_again(command.response, command.operation_id, command.token)
            if response is not command.response:
                found = replace(found, response=response)
        result: C = found
        return result

    def resealed_texts(self, audit: Audit, associated: bytes) -> Audit:
        """As `resealed`, for two texts that are sealed as one."""
        return self._again(
            audit, audit.why,
            lambda old: opened_texts(self.ring, old, associated),
            lambda ring, clear: sealed_texts(ring, clear, associated),
        )  # fmt: skip

    def resealed_text(self, text: str, associated: bytes) -> str:
        """As `resealed`, for one text."""
        return self._again(
            text, text,
            lambda old: opened_text(self.ring, old, associated),
            lambda ring, clear: ring.seal_text(encoded(clear), associated),
        )  # fmt: skip

    def resealed_failure(self, why: str, event_id: str, sink: str) -> str:
        """As `resealed`, for why an event was not published."""
        return self._again(
            why, why or None,
            lambda old: opened_failure(self.ring, old, sink, event_id),
            lambda ring, clear: sealed_failure(ring, clear, event_id, sink),
        )  # fmt: skip

    def resealed_request(self, kept: SealedRequest, operation_id: UUID) -> SealedRequest:
        """As `resealed`, for a kept request."""
        ring = self.ring
        if ring is None:
            return kept
        associated = of_request(operation_id, kept.acceptance_id)
        try:
            content = ring.open(kept.key_id, kept.sealed, associated)
        except Unopenable as error:
            self.reasons.append(str(error))
            return kept
        if kept.key_id == ring.current_id:
            return kept
        return SealedRequest(kept.acceptance_id, *ring.seal(content, associated))

    def _response_again(self, response: StoredResponse | None, operation_id: UUID, token: int) -> StoredResponse | None:
        if response is None:
            return None
        is_clear = not is_sealed_response(response)
        if is_clear and not (response.headers or response.reason or response.body):
            return response
        return self._again(
            response, b"" if is_clear else response.headers[0][1],
            lambda old: self.opened_response(old, operation_id, token),
            lambda _, clear: self._sealed_response(clear, operation_id, token),
        )  # fmt: skip

    def _resource_again(self, resource: str | None, operation_id: UUID) -> str | None:
        return self._again(
            resource, resource,
            lambda old: self._opened_resource(old, operation_id),
            lambda ring, clear: sealed_resource(ring, clear, operation_id),
        )  # fmt: skip

    def _again(
        self, part: P, value: bytes | str | None, opened: Callable[[P], P], sealed: Callable[[KeyRing, P], P]
    ) -> P:
        """The part, sealed with the current key if its `value` is not."""
        if self.ring is None or value is None:
            return part
        try:
            clear = opened(part)
            return sealed(self.ring, clear) if self.is_old(value) else part
        except Unopenable as error:
            self.reasons.append(str(error))
            return part
