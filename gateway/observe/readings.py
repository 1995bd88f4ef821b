"""What is read at each scrape instead of being an event, and the metric that each value is exported as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Final

from gateway.observe.facts import Fact, event

_LOOKUPS: Final = (("cache", "hit"), ("fast", "hit"), ("fast", "miss"), ("fast", "failure"))
_SPANS: Final = ("exported", "dropped", "failed")


@event
class Readings(Fact):
    """Values that are read at each scrape instead of being events. Counts are since the start of the process."""

    in_flight: Mapping[str, int] = field(default_factory=dict)
    oldest_in_flight_seconds: float = 0
    lookups: Mapping[tuple[str, str], int] = field(default_factory=lambda: dict.fromkeys(_LOOKUPS, 0))
    fast_writes_dropped: int = 0
    upkeep_owner: Mapping[str, int] = field(default_factory=dict)
    partitions_late: int = 0
    purges_pending: int = 0
    unshared_seconds: float = 0
    log_lines_dropped: int = 0
    journal_waiting: int = 0
    journal_refused: int = 0
    journal_bytes: int = 0
    journal_oldest_seconds: float = 0
    connections: Mapping[str, int] = field(default_factory=dict)
    connections_opened: Mapping[str, int] = field(default_factory=dict)
    connections_reused: Mapping[str, int] = field(default_factory=dict)
    died_on_reuse: Mapping[str, int] = field(default_factory=dict)
    exchanges: Mapping[tuple[str, str], int] = field(default_factory=dict)
    spans: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(_SPANS, 0))

    series: ClassVar = {"route": ()}
    counts = """
    gauge sum idempotency_in_flight{route} all in_flight: Operations that this gateway works on
    gauge max idempotency_oldest_in_flight_seconds of oldest_in_flight_seconds: How long the oldest of them has been
        worked on, 0 without one
    counter idempotency_copy_lookups_total{source,result} all lookups: Lookups of a recorded response outside the
        durable store
    counter idempotency_fast_writes_dropped_total of fast_writes_dropped: Writes to the fast tier that were given up for
        lack of room
    gauge max idempotency_store_upkeep_owner{duty} all upkeep_owner: Whether it is this gateway's turn to do it for all
        gateways of the durable store
    counter idempotency_partition_late_total of partitions_late: Times that responses had to wait until the partition
        for their day was made
    gauge sum idempotency_purges_pending of purges_pending: Purged operations of which the fast tier may still hold a
        copy
    gauge max idempotency_shared_note_lag_seconds of unshared_seconds: For how long the note in Redis has lacked
        something that the durable store acknowledged, 0 without
    counter idempotency_log_lines_dropped_total of log_lines_dropped: Lines that the log could not write in time
    gauge sum idempotency_journal_waiting of journal_waiting: Outcomes in the journal that wait for the durable store
    gauge sum idempotency_journal_refused of journal_refused: Outcomes in the journal that the durable store refused
    gauge sum idempotency_journal_bytes of journal_bytes: What the journal holds on the disk
    gauge max idempotency_journal_oldest_seconds of journal_oldest_seconds: How long the oldest of those that wait has
        waited, 0 without
    gauge sum idempotency_upstream_connections{upstream} all connections: Open connections to upstreams
    counter idempotency_upstream_connections_opened_total{upstream} all connections_opened: Connections to upstreams
        that were opened
    counter idempotency_upstream_connections_reused_total{upstream} all connections_reused: Idle connections that were
        taken for another request
    counter idempotency_upstream_connections_died_on_reuse_total{upstream} all died_on_reuse: Of those, the ones that
        ended before a byte of a response came
    counter idempotency_upstream_exchanges_total{upstream,result} all exchanges: Requests to upstreams, passed through
        and probes included, by whether a response began to arrive
    counter idempotency_spans_total{result} all spans: Spans of requests, by what became of them on the way to the
        collector
    """
