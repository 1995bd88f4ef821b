"""How a kept request is delivered, as decisions: when the next attempt starts, and when there is none.

Owns the route's delivery policy. An attempt that is known to have had no effect is repeated by the schedule; one of
which that is not known is doubt, and no matter of this module.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.operation import microseconds

_HOUR_US = microseconds(3600)


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """A route's `delivery` settings.

    `schedule_us` are the pauses after the first, second, ... attempt without effect; the last one repeats. No attempt
    starts later than `deliver_within_us` after the acceptance. After `answers_max` answers without effect the request
    is a dead letter. `in_flight_max` bounds the attempts of one process at a time. `buries_unauthorized`: a 401 or 403
    makes a dead letter at once.
    """

    schedule_us: tuple[int, ...] = tuple(microseconds(pause) for pause in (1, 5, 30, 120, 600, 1800, 3600))
    deliver_within_us: int = 24 * _HOUR_US
    answers_max: int = 20
    in_flight_max: int = 64
    buries_unauthorized: bool = True
