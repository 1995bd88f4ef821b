"""What is said of a store or an upstream that cannot be reached, and how often."""

from __future__ import annotations

from gateway.observe.facts import TierChanged, UpstreamChanged
from gateway.observe.lines import Entry
from gateway.observe.outages import Outages

PAYMENTS = "http://payments:9000"
REFUSED = UpstreamChanged(PAYMENTS, "refused", "connecting to 10.0.0.7: refused")
TLS = UpstreamChanged(PAYMENTS, "tls", "TLS with 10.0.0.7: certificate has expired")
REACHED = UpstreamChanged(PAYMENTS)


def messages(*entries: Entry | None) -> list[str]:
    return [entry.message for entry in entries if entry is not None]


def test_each_kind_of_fault_is_told_when_it_begins() -> None:
    """With its cause, as a warning; and that it is over, as news."""
    outages = Outages(lambda: 0.0)
    entries = [outages.line(fact) for fact in (REFUSED, TLS, REFUSED, REACHED, REACHED)]
    assert messages(*entries) == [
        "http://payments:9000 cannot be reached: connecting to 10.0.0.7: refused",
        "http://payments:9000 cannot be reached: TLS with 10.0.0.7: certificate has expired",
        "http://payments:9000 is reached again",
    ]
    assert [entry.level for entry in entries if entry is not None] == ["warning", "warning", "info"]


def test_an_upstream_that_comes_and_goes_is_told_of_from_time_to_time() -> None:
    """One of several addresses that does not answer gives two lines a minute, not two with each request."""
    now = [0.0]
    outages = Outages(lambda: now[0])
    told: list[str] = []
    for _ in range(180):
        told += messages(outages.line(REFUSED), outages.line(REACHED))
        now[0] += 1.0
    assert len(told) == 6


def test_what_was_never_told_is_not_taken_back() -> None:
    """Another upstream that is reached says nothing of this one."""
    outages = Outages(lambda: 0.0)
    outages.line(REFUSED)
    assert outages.line(UpstreamChanged("http://orders:9000")) is None
    assert messages(outages.line(TierChanged("fast", True)), outages.line(REACHED)) == [
        "the fast store is up",
        "http://payments:9000 is reached again",
    ]


def test_a_store_that_comes_and_goes_is_told_to_do_that() -> None:
    """A full disk, which can still be read, gives three lines, and one when it has been well for a minute."""
    now = [0.0]
    outages = Outages(lambda: now[0])
    full, well = TierChanged("durable", False, "no space is left"), TierChanged("durable", True)

    def told(*facts: TierChanged) -> list[str]:
        now[0] += 20.0
        return messages(*map(outages.line, facts), *outages.lasting())

    assert told(well) == ["the durable store is up"]
    assert told(full, well, full, well) == [
        "the durable store is down",
        "the durable store is up",
        "the durable store comes and goes; it will be told when it stays up",
    ]
    assert [told(full, well) for _ in range(100)] == [[]] * 100
    assert told(TierChanged("durable", False, "an I/O error"), well) == ["the durable store is still down"]
    assert [told() for _ in range(4)] == [[], [], ["the durable store stays up"], []]
    assert told(full, well) == ["the durable store is down", "the durable store is up"]


def test_outages_that_lie_apart_are_told_each() -> None:
    """A store that was well in between went down, and nothing else; so it is where the clock was set back since."""
    now = [0.0]
    outages = Outages(lambda: now[0])
    for seconds in (0.0, 60.0, -1_000.0):
        now[0] += seconds
        assert messages(
            outages.line(TierChanged("fast", False, "refused")), outages.line(TierChanged("fast", True))
        ) == [
            "the fast store is down",
            "the fast store is up",
        ]
