"""A breaker spares an upstream that cannot be reached, and does not bury it when it comes back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.delivery import PLACES_MAX, Breaker, BreakerPolicy, Phase

POLICY = BreakerPolicy(failures=5, open_seconds=10, open_seconds_max=300)


def begun(breaker: Breaker, now: float) -> Breaker:
    after = breaker.begin(now)
    assert after is not None
    return after


def tried(breaker: Breaker, now: float, *, is_sent: bool | None, times: int = 1) -> Breaker:
    """After so many attempts, one after another, that all ended so."""
    for _ in range(times):
        running = begun(breaker, now)
        breaker = running.end(now, running.generation, is_sent=is_sent)
    return breaker


def opened() -> Breaker:
    return tried(Breaker(POLICY), 0, is_sent=False, times=5)


def test_failures_in_a_row_open_it() -> None:
    """One that was sent begins the count anew, whatever its response. A claim that another gateway got first is neither
    a failure nor a success."""
    breaker = tried(Breaker(POLICY), 0, is_sent=False, times=4)
    breaker = tried(breaker, 1, is_sent=True)
    breaker = tried(breaker, 2, is_sent=False, times=4)
    breaker = tried(breaker, 2, is_sent=None, times=100)
    assert breaker.phase is Phase.CLOSED
    assert tried(breaker, 3, is_sent=False).phase is Phase.OPEN


def test_half_of_many_open_it() -> None:
    """Of twenty in half a minute, ten; what is older does not count."""
    breaker = Breaker(POLICY)
    for second in range(9):
        breaker = tried(tried(breaker, second, is_sent=True), second, is_sent=False)
    breaker = tried(breaker, 10, is_sent=True)
    assert breaker.phase is Phase.CLOSED
    assert tried(breaker, 20, is_sent=False).phase is Phase.OPEN
    assert tried(tried(breaker, 20, is_sent=True, times=2), 20, is_sent=False).phase is Phase.CLOSED
    assert tried(breaker, 45, is_sent=False).phase is Phase.CLOSED


def test_half_open_lets_one_through() -> None:
    """Nothing is tried until the time is over; then exactly one at a time, until one was sent."""
    assert opened().begin(9.9) is None
    assert (opened().free(9.9), opened().free(10), opened().wake_seconds(4)) == (0, 1, 6)
    breaker = begun(opened(), 10)
    assert (breaker.phase, breaker.begin(10), breaker.free(99)) == (Phase.HALF_OPEN, None, 0)
    untried = breaker.end(11, breaker.generation, is_sent=None)
    assert untried.begin(11) is not None
    assert untried.free(11) == 1


def test_each_opening_is_twice_as_long() -> None:
    """Up to a limit; one that was closed in between begins with the shortest."""
    breaker, now, lengths = opened(), 0.0, []
    for _ in range(7):
        lengths.append(breaker.open_until - now)
        now = breaker.open_until
        breaker = tried(breaker, now, is_sent=False)
    assert lengths == [10, 20, 40, 80, 160, 300, 300]
    breaker = tried(breaker, breaker.open_until, is_sent=True)
    later = now + 1000
    assert breaker.free(later) is None
    assert tried(breaker, later, is_sent=False, times=5).open_until == later + 10


def test_slow_start() -> None:
    """One place in the first second, twice as many in each second without a failure, then no bound."""
    breaker = tried(opened(), 10, is_sent=True)
    assert (breaker.phase, breaker.free(10.9)) == (Phase.SLOW_START, 0)
    assert [breaker.free(10 + second) for second in range(1, 6)] == [2, 4, 8, 16, 32]
    used = tried(breaker, 11, is_sent=True, times=2)
    assert (used.free(11.5), used.begin(11.5), used.free(12)) == (0, None, 4)
    assert [tried(breaker, 11, is_sent=False).free(second) for second in (12, 13)] == [2, 4]
    running = begun(begun(breaker, 11), 11)
    assert running.free(12) == 2, "those that still run have their places"
    assert breaker.free(30) is None


STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "send", "sent", "unsent", "untried"]), st.floats(0, 20), st.integers(0, 10)),
    max_size=120,
)


@settings(max_examples=150)
@given(STEPS)
def test_any_history(steps: list[tuple[str, float, int]]) -> None:
    """Never more than one attempt half open, never one while open, never a count below zero, and always a way out."""
    breaker, now, running = Breaker(POLICY), 0.0, list[int]()
    for step, seconds, which in steps:
        now += seconds
        if step == "begin":
            free = breaker.free(now)
            after = breaker.begin(now)
            assert (after is None) == (free == 0)
            if after is not None:
                assert after.phase is not Phase.OPEN
                running.append(after.generation)
                breaker = after
        elif step == "send" and running:
            breaker = breaker.sent(now, running[which % len(running)])
        elif running:
            is_sent = {"sent": True, "unsent": False, "untried": None}[step]
            breaker = breaker.end(now, running.pop(which % len(running)), is_sent=is_sent)
        assert breaker.running == running.count(breaker.generation)
        assert breaker.phase is not Phase.HALF_OPEN or breaker.running <= 1
        assert breaker.phase is not Phase.SLOW_START or 1 <= breaker.places < PLACES_MAX
        assert breaker.open_until <= now + POLICY.open_seconds_max
    for generation in running:
        breaker = breaker.end(now, generation, is_sent=None)
    assert breaker.free(now + POLICY.open_seconds_max) != 0
