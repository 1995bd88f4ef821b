"""The dashboard that we ship shows what a gateway really exports, and nothing that is exported is forgotten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.observe.promql import OF_COUNTERS, selectors
from tests.support import http
from tests.support.house import house

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/idempotency-gateway.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
RATE_INTERVAL = "$__rate_interval"
TARGET_LABELS = {"job", "instance"}
# Exported once a configuration was loaded anew, a certificate is used, or a route is only observed.
ON_OCCASION = {"idempotency_tls_certificate_expiry_timestamp_seconds": "gauge"}


@pytest.fixture
async def exported(tmp_path: Path) -> dict[str, tuple[str, set[str]]]:
    """Type and label names of the families of a real gateway after a request and its repeat, by name."""
    async with house({"durable": f"sqlite://{tmp_path}/gateway.db"}, tmp_path) as running:
        await running.send()
        await running.send()
        response = await http.request(running.status_port, "GET", "/metrics")
    found: dict[str, tuple[str, set[str]]] = {name: (type_, {"reason"}) for name, type_ in ON_OCCASION.items()}
    for family in text_string_to_metric_families(response.body.decode()):
        if family.name.startswith("idempotency_"):
            found[family.name] = (family.type, {label for sample in family.samples for label in sample.labels})
    return found


def family_of(metric: str, exported: dict[str, tuple[str, set[str]]]) -> str:
    for suffix in ("", "_total", "_bucket", "_count", "_sum", "_info"):
        if metric.endswith(suffix) and metric.removesuffix(suffix) in exported:
            return metric.removesuffix(suffix)
    return metric


async def test_every_expression_selects_what_a_gateway_exports(exported: dict[str, tuple[str, set[str]]]) -> None:
    """Names and labels exist; counters are shown as rates over the interval of the panel, gauges as they are."""
    for expression in EXPRESSIONS:
        assert "[" not in expression.replace(f"[{RATE_INTERVAL}]", ""), expression
        for selector in selectors(expression.replace(RATE_INTERVAL, "5m")):
            name = family_of(selector.metric, exported)
            assert name in exported, selector.metric
            type_, labels = exported[name]
            assert (type_ == "gauge") != bool(OF_COUNTERS & set(selector.functions)), expression
            used = {*selector.matchers, *selector.patterns, *(label for by in selector.groupings for label in by)}
            # A family that has no series yet shows no labels.
            assert not labels or used <= labels | TARGET_LABELS, expression
            assert set(selector.patterns) >= TARGET_LABELS
            for label, value in selector.patterns.items():
                assert value == f"${label}"
