"""Reads what a scrape gets, with the parser of the Prometheus client."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from gateway.observe.facts import Events, Fact
from gateway.observe.metrics import Metrics


@dataclass(frozen=True)
class Series:
    """One line of a scrape; `type` is that of its family."""

    name: str
    labels: dict[str, str]
    value: float
    type: str


class Scrape:
    """The series of one scrape."""

    def __init__(self, text: str) -> None:
        self.series = [
            Series(sample.name, dict(sample.labels), sample.value, family.type)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def named(self, name: str) -> list[Series]:
        return [series for series in self.series if series.name == name]

    def value(self, name: str, **labels: str) -> float:
        """The value of the only series with this name and exactly these labels."""
        (found,) = [series for series in self.named(name) if series.labels == labels]
        return found.value

    def total(self, name: str, **labels: str) -> float:
        """The sum of the series with this name and, among others, these labels."""
        found = [each for each in self.named(name) if labels.items() <= each.labels.items()]
        assert found, name
        return sum(each.value for each in found)

    def changed_since(self, before: Scrape) -> dict[tuple[str, ...], float]:
        """By how much what this project counts changed, by name and label values in the order of the labels' names.
        Buckets are left out."""
        was = {(series.name, *series.labels.values()): series.value for series in before.series}
        now = {(series.name, *series.labels.values()): series.value for series in self.series}
        return {
            key: round(value - was.get(key, 0.0), 9)
            for key, value in now.items()
            if value != was.get(key, 0.0) and key[0].startswith("idempotency_") and not key[0].endswith("_bucket")
        }


async def scrape(metrics: Metrics) -> Scrape:
    body, content_type = await metrics.render("")
    assert content_type.startswith("text/plain")
    return Scrape(body.decode())


def publish(metrics: Metrics, fact: Fact) -> None:
    Events(count=metrics.counting).publish(fact)
