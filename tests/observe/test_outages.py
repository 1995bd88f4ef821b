"""What is logged of a store or an upstream that cannot be reached, and how often."""

from __future__ import annotations

import logging

from gateway.observe.facts import TierChanged, UpstreamChanged
from gateway.observe.logs import Outages

PAYMENTS = "http://payments:9000"
REFUSED = UpstreamChanged(PAYMENTS, "refused", "connecting to 10.0.0.7: refused")
TLS = UpstreamChanged(PAYMENTS, "tls", "TLS with 10.0.0.7: certificate has expired")
REACHED = UpstreamChanged(PAYMENTS)
FULL, WELL = TierChanged("durable", False, "no space is left"), TierChanged("durable", True)


def changed(outages: Outages, *facts: TierChanged | UpstreamChanged) -> list[str]:
    return [line.message for fact in facts for _, line in outages.changed(fact)]


def test_each_kind_of_fault_is_logged_when_it_begins() -> None:
    """With its cause, as a warning; and that it is over, as news."""
    outages = Outages(lambda: 0.0)
    lines = [line for fact in (REFUSED, TLS, REFUSED, REACHED, REACHED) for line in outages.changed(fact)]
    assert [(level, line.message, line.fields.get("detail")) for level, line in lines] == [
        (logging.WARNING, "http://payments:9000 is down", "connecting to 10.0.0.7: refused"),
        (logging.WARNING, "http://payments:9000 is still down", "TLS with 10.0.0.7: certificate has expired"),
        (logging.INFO, "http://payments:9000 is up", None),
    ]


def test_what_was_never_down_does_not_come_back() -> None:
    """Another upstream that is reached says nothing of this one; a store says when it is first there."""
    outages = Outages(lambda: 0.0)
    assert changed(outages, REFUSED, UpstreamChanged("http://orders:9000"), TierChanged("fast", True), REACHED) == [
        "http://payments:9000 is down",
        "the fast store is up",
        "http://payments:9000 is up",
    ]


def test_what_comes_and_goes_is_said_to_do_that() -> None:
    """A full disk, which can still be read, gives three lines, and one when it has been well for a minute."""
    now = [0.0]
    outages = Outages(lambda: now[0])

    def said(*facts: TierChanged | UpstreamChanged) -> list[str]:
        now[0] += 20.0
        return [*changed(outages, *facts), *(line.message for _, line in outages.ended())]

    assert said(WELL) == ["the durable store is up"]
    assert said(FULL, WELL, FULL, WELL) == [
        "the durable store is down",
        "the durable store is up",
        "the durable store comes and goes; the next line follows when it stays up",
    ]
    assert [said(FULL, WELL) for _ in range(100)] == [[]] * 100
    assert said(TierChanged("durable", False, "an I/O error"), WELL) == ["the durable store is still down"]
    assert [said() for _ in range(4)] == [[], [], ["the durable store stays up"], []]
    assert said(FULL, WELL) == ["the durable store is down", "the durable store is up"]


def test_an_upstream_with_a_dead_address_fills_no_log() -> None:
    """However often one of its addresses is tried in vain, there are four lines."""
    now = [0.0]
    outages = Outages(lambda: now[0])
    said: list[str] = []
    for _ in range(180):
        said += changed(outages, REFUSED, REACHED)
        now[0] += 1.0
    now[0] += 60.0
    said += [line.message for _, line in outages.ended()]
    assert len(said) == 4
    assert said[-1] == "http://payments:9000 stays up"


def test_outages_that_lie_apart_are_logged_each() -> None:
    """A store that was well in between went down, and nothing else; so it is where the clock was set back since."""
    now = [0.0]
    outages = Outages(lambda: now[0])
    for seconds in (0.0, 60.0, -1_000.0):
        now[0] += seconds
        assert changed(outages, FULL, WELL) == ["the durable store is down", "the durable store is up"]
