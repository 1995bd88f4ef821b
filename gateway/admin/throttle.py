"""How often somebody may be wrong about the token.

Counts failures by address in windows that are counted from the first; what is full is refused without looking at the
token, so that guessing is slow and the log stays short. An address of IPv6 is its network of 64 bits, which one host
has to itself. The table is bounded: whoever failed longest ago is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

FAILURES_MAX: Final = 10
WINDOW_SECONDS: Final = 60.0
_ADDRESSES_MAX: Final = 1_000


class Throttle:
    """`clock` gives seconds that never go back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._windows: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def wait_seconds(self, address: str | None) -> float:
        """How long this address has to wait before it is listened to; 0 when it is."""
        until, failures = self._windows.get(_place(address), (0.0, 0))
        return max(0.0, until - self._clock()) if failures >= FAILURES_MAX else 0.0

    def failed(self, address: str | None) -> int:
        """Count a failure; returns how many there were in this window."""
        place, now = _place(address), self._clock()
        until, failures = self._windows.pop(place, (0.0, 0))
        if until <= now:
            until, failures = now + WINDOW_SECONDS, 0
        self._windows[place] = (until, failures + 1)
        while len(self._windows) > _ADDRESSES_MAX:
            self._windows.popitem(last=False)
        return failures + 1


def _place(address: str | None) -> str:
    try:
        parsed = ip_address((address or "").partition("%")[0])
    except ValueError:
        return ""
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))
    return str(parsed)
