"""What is read at each scrape instead of being an event, and the metric that each value is exported as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from gateway.observe.exposition import Counter, Gauge, Rule


def _reading(name: str, text: str, rule: Rule | None = None, *, by: str | None = None, **labels: str) -> Any:
    """A field of `Readings` and the series that it is exported as: a gauge if it has a rule, else a counter. `by` is a
    label whose values are the keys of the field."""
    default: Any = {"default": 0} if by is None else {"default_factory": dict}
    return field(**default, metadata={"name": name, "text": text, "rule": rule, "by": by, "labels": labels})


_LOOKUPS: Final = ("idempotency_copy_lookups_total", "Lookups of a recorded response outside the durable store")
_EXCHANGES: Final = (
    "idempotency_upstream_exchanges_total",
    "Requests to upstreams, passed through and probes included, by whether a response began to arrive",
)


_SPANS: Final = ("idempotency_spans_total", "Spans of requests, by what became of them on the way to the collector")


@dataclass(frozen=True, slots=True)
class Readings:
    """Values that are read at each scrape instead of being events. Counts are since the start of the process."""

    in_flight: Mapping[str, int] = _reading(
        "idempotency_in_flight", "Operations that this gateway works on", Rule.SUM, by="route"
    )
    oldest_in_flight_seconds: float = _reading(
        "idempotency_oldest_in_flight_seconds",
        "How long the oldest of them has been worked on, 0 without one",
        Rule.MAX,
    )
    cache_hits: int = _reading(*_LOOKUPS, source="cache", result="hit")
    fast_hits: int = _reading(*_LOOKUPS, source="fast", result="hit")
    fast_misses: int = _reading(*_LOOKUPS, source="fast", result="miss")
    fast_failures: int = _reading(*_LOOKUPS, source="fast", result="failure")
    fast_writes_dropped: int = _reading(
        "idempotency_fast_writes_dropped_total", "Writes to the fast tier that were given up for lack of room"
    )
    upkeep_owner: Mapping[str, int] = _reading(
        "idempotency_store_upkeep_owner",
        "Whether it is this gateway's turn to do it for all gateways of the durable store",
        Rule.MAX,
        by="duty",
    )
    partitions_late: int = _reading(
        "idempotency_partition_late_total",
        "Times that responses had to wait until the partition for their day was made",
    )
    purges_pending: int = _reading(
        "idempotency_purges_pending", "Purged operations of which the fast tier may still hold a copy", Rule.SUM
    )
    unshared_seconds: float = _reading(
        "idempotency_shared_note_lag_seconds",
        "For how long the note in Redis has lacked something that the durable store acknowledged, 0 without",
        Rule.MAX,
    )
    log_lines_dropped: int = _reading(
        "idempotency_log_lines_dropped_total", "Lines that the log could not write in time"
    )
    journal_waiting: int = _reading(
        "idempotency_journal_waiting", "Outcomes in the journal that wait for the durable store", Rule.SUM
    )
    journal_refused: int = _reading(
        "idempotency_journal_refused", "Outcomes in the journal that the durable store refused", Rule.SUM
    )
    journal_bytes: int = _reading("idempotency_journal_bytes", "What the journal holds on the disk", Rule.SUM)
    journal_oldest_seconds: float = _reading(
        "idempotency_journal_oldest_seconds", "How long the oldest of those that wait has waited, 0 without", Rule.MAX
    )
    connections: Mapping[str, int] = _reading(
        "idempotency_upstream_connections", "Open connections to upstreams", Rule.SUM, by="upstream"
    )
    connections_opened: Mapping[str, int] = _reading(
        "idempotency_upstream_connections_opened_total", "Connections to upstreams that were opened", by="upstream"
    )
    connections_reused: Mapping[str, int] = _reading(
        "idempotency_upstream_connections_reused_total",
        "Idle connections that were taken for another request",
        by="upstream",
    )
    died_on_reuse: Mapping[str, int] = _reading(
        "idempotency_upstream_connections_died_on_reuse_total",
        "Of those, the ones that ended before a byte of a response came",
        by="upstream",
    )
    exchanges_answered: Mapping[str, int] = _reading(*_EXCHANGES, by="upstream", result="answered")
    exchanges_lost: Mapping[str, int] = _reading(*_EXCHANGES, by="upstream", result="lost")
    exchanges_not_sent: Mapping[str, int] = _reading(*_EXCHANGES, by="upstream", result="not_sent")
    spans_exported: int = _reading(*_SPANS, result="exported")
    spans_dropped: int = _reading(*_SPANS, result="dropped")
    spans_failed: int = _reading(*_SPANS, result="failed")


def _by_label(reading: Any) -> Mapping[tuple[str, ...], float]:
    """The values of a reading by the value of its label, of which most have none."""
    return {(label,): value for label, value in reading.items()} if isinstance(reading, Mapping) else {(): reading}


class ReadFamilies:
    """The families of the readings."""

    def __init__(self) -> None:
        self.by_name: dict[str, Counter | Gauge] = {}
        # For each reading its family, its label values, and its field.
        self._series: list[tuple[Counter | Gauge, tuple[str, ...], str]] = []
        self._before = Readings()
        for each in fields(Readings):
            name, text, rule, by, labels = (each.metadata[key] for key in ("name", "text", "rule", "by", "labels"))
            family = self.by_name.get(name)
            if family is None:
                nothing: dict[str, tuple[str, ...]] = dict.fromkeys([*([by] if by else []), *labels], ())
                family = Counter(name, text, nothing) if rule is None else Gauge(name, text, nothing, rule)
                self.by_name[name] = family
            self._series.append((family, tuple(labels.values()), each.name))

    def put(self, readings: Readings) -> None:
        """These are the values now."""
        before, self._before = self._before, readings
        for family, labels, name in self._series:
            now, then = _by_label(getattr(readings, name)), _by_label(getattr(before, name))
            for label in now.keys() | then.keys():
                value = now.get(label, 0)
                if isinstance(family, Gauge):
                    family.put(value, *label, *labels)
                else:
                    # In addition to what was absorbed.
                    family.add(*label, *labels, amount=value - then.get(label, 0))
