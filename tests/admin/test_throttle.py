"""How often somebody may be wrong about the token."""

from __future__ import annotations

from gateway.admin.access import FAILURES_MAX, WINDOW_SECONDS, Throttle
from tests.support.memory_store import ManualClock


def throttle() -> tuple[Throttle, ManualClock]:
    clock = ManualClock(0)
    return Throttle(lambda: clock() / 1_000_000), clock


def test_addresses_do_not_share() -> None:
    """One address that is wrong keeps no other out; one network of 64 bits of IPv6 counts as one address."""
    kept, clock = throttle()
    for number in range(FAILURES_MAX):
        kept.failed("192.0.2.1")
        kept.failed(f"2001:db8::{number:x}")
    assert kept.wait_seconds("192.0.2.1") == WINDOW_SECONDS
    assert kept.wait_seconds("::ffff:192.0.2.1") == WINDOW_SECONDS
    assert kept.wait_seconds("192.0.2.2") == 0.0
    assert kept.wait_seconds("2001:db8::ffff") == WINDOW_SECONDS
    assert kept.wait_seconds("2001:db8:0:1::1") == 0.0
    clock.advance(WINDOW_SECONDS - 1)
    assert kept.wait_seconds("192.0.2.1") == 1.0
    clock.advance(1)
    assert kept.wait_seconds("192.0.2.1") == 0.0
    assert kept.failed("192.0.2.1") == 1


def test_table_is_bounded() -> None:
    """Many addresses push out those that failed longest ago."""
    kept, _ = throttle()
    for _ in range(FAILURES_MAX):
        kept.failed("192.0.2.1")
    for number in range(1000):
        kept.failed(f"10.0.{number // 256}.{number % 256}")
    assert kept.wait_seconds("192.0.2.1") == 0.0
