"""The arguments of the statements for claims, completions and acceptances.

They are the ones between the time and the link: arrays with one element per operation. Some are shorter, because the
driver encodes each element: one that is equal for all is sent once, and a column of nulls is not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway.core.confidential import sealed_by
from gateway.core.message import pack_headers
from gateway.core.operation import Accept, Claim, Complete
from gateway.store.postgres.rows import pack_resource
from gateway.store.request_line import line_of


def _once(column: list[Any]) -> list[Any]:
    """Only the first element if all are equal, because the driver encodes each. For a column without nulls."""
    return column[:1] if column.count(column[0]) == len(column) else column


def _if_any(column: list[Any]) -> list[Any]:
    """No element if all are null."""
    return [] if column.count(None) == len(column) else column


def _of_key(commands: Sequence[Claim] | Sequence[Accept]) -> tuple[list[Any], ...]:
    """Whose operation it is, under which key, and its fingerprint."""
    identities = [command.identity for command in commands]
    fingerprints = [command.fingerprint for command in commands]
    return (
        _once([identity.route for identity in identities]),
        _once([identity.operation for identity in identities]),
        _once([identity.scope_digest for identity in identities]),
        [identity.key_digest for identity in identities],
        _if_any([identity.key for identity in identities]),
        _once([fingerprint.recipe for fingerprint in fingerprints]),
        [fingerprint.digest for fingerprint in fingerprints],
        [fingerprint.raw for fingerprint in fingerprints],
        _once([fingerprint.key_id for fingerprint in fingerprints]),
        [fingerprint.parts for fingerprint in fingerprints],
    )


def _of_request(commands: Sequence[Claim] | Sequence[Accept]) -> tuple[list[Any], ...]:
    """What a probe asks, and what operators see of the request."""
    probes = [command.probe for command in commands]
    requests = [command.request for command in commands]
    return (
        _if_any([None if probe is None else probe.target for probe in probes]),
        _if_any([None if probe is None else probe.host for probe in probes]),
        _if_any([sealed_by(command.identity, command.probe, command.request) for command in commands]),
        _once([line_of(request) for request in requests]),
        _if_any([None if request is None else request.request_id for request in requests]),
        _if_any([None if request is None else request.trace_id for request in requests]),
    )


def claim_arguments(commands: Sequence[Claim], due_in_us: Callable[[str], int]) -> tuple[list[Any], ...]:
    """`due_in_us` predicts by operation name after how long upkeep has to check the claim."""
    return (
        [command.identity.operation_id for command in commands],
        [command.attempt_id for command in commands],
        _once([command.holder for command in commands]),
        *_of_key(commands),
        _once([command.lease_us for command in commands]),
        _if_any([command.read_token for command in commands]),
        _once([due_in_us(command.identity.operation) for command in commands]),
        *_of_request(commands),
    )


def acceptance_arguments(commands: Sequence[Accept]) -> tuple[list[Any], ...]:
    return (
        [command.identity.operation_id for command in commands],
        [command.attempt_id for command in commands],
        _once([command.service for command in commands]),
        *_of_key(commands),
        _once([command.deliver_within_us for command in commands]),
        _if_any([command.read_token for command in commands]),
        *_of_request(commands),
        [command.kept.acceptance_id for command in commands],
        _once([command.kept.key_id for command in commands]),
        [command.kept.sealed for command in commands],
        _if_any([command.lane for command in commands]),
        [] if all(command.stops_lane for command in commands) else [command.stops_lane for command in commands],
    )


def completion_arguments(commands: Sequence[Complete]) -> tuple[Any, ...]:
    responses = [command.response for command in commands]
    return (
        [command.operation_id for command in commands],
        [command.token for command in commands],
        [command.attempt_id for command in commands],
        _once([command.replay_us for command in commands]),
        _once([command.remember_us for command in commands]),
        _once([response.status for response in responses]),
        _if_any([pack_resource(command.resource) for command in commands]),
        _if_any([response.version or None for response in responses]),
        _if_any([sealed_by(response=command.response, resource=command.resource) for command in commands]),
        _once([response.reason for response in responses]),
        [pack_headers(response.headers) for response in responses],
        _if_any([response.body for response in responses]),
        # No records need to be returned if every caller has that of its claim.
        all(command.granted is not None for command in commands),
    )
