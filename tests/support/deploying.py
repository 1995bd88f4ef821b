"""Writes what of the deployment files follows from other files: `make docs`.

The rules of the Prometheus operator and the chart's copies of alerts and dashboard, because neither kustomize nor Helm
reads a file outside of its directory; and the schema of the chart's values, which holds the gateway's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support import api_docs

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
CHART: Final = DEPLOY / "helm" / "idempotency-gateway"
_RULE_HEAD: Final = """\
# Made of deploy/alerts.yml by `make docs`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: idempotency-gateway
  labels:
    app.kubernetes.io/name: idempotency-gateway
    # A Prometheus of the usual installation looks at nothing without this label.
    #release: kube-prometheus-stack
spec:
"""


def generated() -> dict[Path, str]:
    """Each file and its text."""
    alerts = (DEPLOY / "alerts.yml").read_text("utf-8")
    groups = alerts[alerts.index("groups:") :]
    indented = "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(keepends=True))
    files = {
        DEPLOY / "kustomize/components/prometheus-operator/prometheus-rule.yaml": _RULE_HEAD + indented,
        CHART / "files" / "alerts.yml": groups,
        CHART / "values.schema.json": json.dumps(_values_schema(), indent=2) + "\n",
    }
    dashboard = DEPLOY / "grafana" / "idempotency-gateway.json"
    if dashboard.exists():
        files[CHART / "files" / dashboard.name] = dashboard.read_text("utf-8")
    return files


def _values_schema() -> dict[str, Any]:
    """The kinds of the values as they are by default, and the gateway's schema for `config`."""
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    gateway = json.loads((ROOT / "config" / "gateway.schema.json").read_text("utf-8"))
    definitions = gateway.pop("$defs")
    # Helm looks for a schema that is named by a URL in the network.
    for name in ("$schema", "$id"):
        gateway.pop(name, None)
    properties: dict[str, Any] = {
        name: {"type": _kind(value)} for name, value in values.items() if name not in ("config", "global")
    }
    properties["minAvailable"] = {"type": ["integer", "string"]}
    properties["existingSecret"] = {"type": "string", "minLength": 1}
    properties["secretKeys"] = {"type": "array", "items": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
        "required": ["config", "existingSecret"],
        "properties": {"config": gateway, **properties, "global": {"type": "object"}},
        "$defs": definitions,
    }


def _kind(value: object) -> str:
    kinds = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    return kinds[type(value)]


if __name__ == "__main__":
    for path, text in (generated() | api_docs.generated()).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
