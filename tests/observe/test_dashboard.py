"""The dashboard that we ship shows what a gateway really exports, and nothing that is exported is forgotten."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
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
# In no alert and no panel, and why.
NOT_SHOWN = {
    "idempotency_admin_actions": "of interest when somebody asks who did what: the audits say more",
    "idempotency_admin_sign_ins": "as above",
    "idempotency_backlog_bytes": "the number and the age say the same, and are limited",
    "idempotency_build_info": "the source of the dashboard's variables",
    "idempotency_claims": "the same as the settlements, but for what is in flight",
    "idempotency_config_info": "compared by people while they roll a configuration out",
    "idempotency_config_last_reload_success_timestamp_seconds": "an alert says whether the last one failed",
    "idempotency_config_reloads": "as above",
    "idempotency_encrypted_operations": "looked at while keys are changed, by `rekey` itself",
    "idempotency_fetch_duration_seconds": "a fetch is the service's own response time, which has a panel",
    "idempotency_forward_auth": "refusals are verdicts; the rest is the authorising service's own affair",
    "idempotency_inbox_changed": "each has a line of the log, and belongs to the sender",
    "idempotency_journal_bytes": "the number of outcomes and their age say the same",
    "idempotency_journaled": "a verdict of its own",
    "idempotency_observed_rekeyed": "`observe report` counts exactly, and says what follows",
    "idempotency_observed_repeats": "as above",
    "idempotency_observed_requests": "as above",
    "idempotency_purges_pending": "a stop reports them, and the next start repeats them",
    "idempotency_region_requests": "another region is an upstream, and what is lost on the way is a verdict",
    "idempotency_routes": "changes with the configuration alone",
    "idempotency_secret_used": "looked at while secrets are changed",
    "idempotency_status_requests": "reads of callers; nothing depends on them",
    "idempotency_store_promotions": "each has a line of the log, and one that is refused is an alert as a lost memory",
    "idempotency_store_synchronous": "a matter of how Postgres is set up; the gateway may be told to require it",
    "idempotency_store_upkeep_owner": "which gateway it is matters to nobody; what is overdue has its own alerts",
    "idempotency_store_timeline": "changes with a promotion, which has a line of the log",
    "idempotency_store_unvouched_gateways": "ends within `store.promotion_wait`, accepted or as a lost memory",
    "idempotency_shared_note_lag_seconds": "rises while Redis is away, which has a panel",
    "idempotency_sweep_duration_seconds": "sweeps are bounded, and hurt nobody while the calls of the store are quick",
    "idempotency_unreadable_records": "each has a line of the log at level error",
    "idempotency_upstream_connections_died_on_reuse": "normal now and then",
    "idempotency_upstream_connections_opened": "looked at when the service is slow",
    "idempotency_upstream_connections_reused": "as above",
}


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


async def test_every_metric_is_watched_shown_or_left_out_for_a_reason(
    exported: dict[str, tuple[str, set[str]]],
) -> None:
    """Each metric is in an alert, in a panel, or in a list with the reason why it is in neither."""
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    alerts = [rule["expr"] for group in groups for rule in group["rules"]]
    used = {
        family_of(selector.metric, exported)
        for expression in (*alerts, *EXPRESSIONS)
        for selector in selectors(expression.replace(RATE_INTERVAL, "5m"))
    }
    assert exported.keys() - used == NOT_SHOWN.keys()


def test_the_dashboard_can_be_imported_anywhere() -> None:
    """It has a fixed uid and no id, names no data source, and its variables are those that it uses."""
    assert (DASHBOARD["uid"], "id" in DASHBOARD) == ("idempotency-gateway", False)
    variables = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert variables == ["datasource", "job", "instance", "route"]


def test_panels_say_what_they_show_and_do_not_overlap() -> None:
    """Each has a title, a description and a unit of its own, an id, and its place on the grid of 24 columns."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in PANELS:
        assert all((panel["title"], panel["description"], panel["fieldConfig"]["defaults"]["unit"], panel["targets"]))
        assert {each["datasource"]["uid"] for each in (panel, *panel["targets"])} == {"${datasource}"}
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(0 <= place["x"] <= place["x"] + place["w"] <= 24 for place in places)
    for a, b in combinations(places, 2):
        is_beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert is_beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
