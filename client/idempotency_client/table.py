"""The table of docs/client-libraries.md: what a response says about repeating its request, and about its effect.

It holds for whoever spoke: the gateway, the service behind it, or what is between them and the caller. `headers` are
found in any spelling of their names.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final

# What a proxy or a load balancer says by itself, having no header of the gateway's.
_PASSING: Final = frozenset((429, 502, 503, 504))
_COMPLETED: Final = frozenset(("stored", "replayed", "recovered", "fetched", "journaled", "response-not-stored"))


class Known(StrEnum):
    """What is known of the effect of an intent."""

    DONE = "done"
    NEVER_HAPPENED = "never happened"
    IN_DOUBT = "in doubt"


class Advice(Enum):
    """What to do after a response."""

    REPEAT = "send the same again, under the same key"
    ANSWER = "hand it to the caller"
    STOP = "send nothing more: the gateway has nothing else to say"


def advice(status: int, headers: Mapping[str, str]) -> Advice:
    """The first line that fits decides."""
    again, verdict = headers.get("x-should-retry"), headers.get("Idempotency-Status")
    if again == "true":
        return Advice.REPEAT
    # Only a problem of the gateway has an outcome. Its word on a response of the service is the verdict.
    if verdict == "in-doubt" or "Idempotency-Outcome" in headers:
        return Advice.STOP
    if again == "false" or verdict is not None or status not in _PASSING:
        return Advice.ANSWER
    return Advice.REPEAT


def known_after(headers: Mapping[str, str], before: Known) -> Known:
    """What is known after a try. One without effect says nothing of those before it, and what is done stays done."""
    verdict, outcome = headers.get("Idempotency-Status"), headers.get("Idempotency-Outcome")
    if before is Known.DONE or outcome == "retryable" or verdict == "released":
        return before
    return Known.DONE if outcome == "final" or (outcome is None and verdict in _COMPLETED) else Known.IN_DOUBT
