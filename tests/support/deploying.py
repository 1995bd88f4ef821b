"""Writes what of the deployment files follows from other files: `make docs`."""

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
    alerts = (DEPLOY / "alerts.yml").read_text("utf-8")
    groups = alerts[alerts.index("groups:") :]
    indented = "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(keepends=True))
    files = {
        DEPLOY / "kustomize/components/prometheus-operator/prometheus-rule.yaml": _RULE_HEAD + indented,
        CHART / "files" / "alerts.yml": groups,
        CHART / "values.schema.json": json.dumps(_values_schema(), indent=2) + "\n",
    }
    dashboard = DEPLOY / "grafana" / "idempotency-gateway.json"
    return files | {CHART / "files" / dashboard.name: dashboard.read_text("utf-8")}


def _values_schema() -> dict[str, Any]:
    """The values as they are by default, the gateway's schema for `config`, and nothing else."""
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    gateway = json.loads((ROOT / "config" / "gateway.schema.json").read_text("utf-8"))
    definitions = gateway.pop("$defs")
    # Helm looks for a schema that is named by a URL in the network.
    for name in ("$schema", "$id"):
        gateway.pop(name, None)
    del values["config"]
    closed = _schema_of(values)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **closed,
        "required": ["config"],
        "properties": {"config": gateway, **closed["properties"], "global": {"type": "object"}},
        # Without a secret there are no keys of it.
        "anyOf": [
            {"properties": {"existingSecret": {"minLength": 1}}},
            {"properties": {"secretKeys": {"maxItems": 0}}, "required": ["secretKeys"]},
        ],
        "$defs": definitions,
    }


def _schema_of(value: Any, path: str = "") -> dict[str, Any]:
    """The kind of a value; of one that is empty or Kubernetes' own, what is written for its path or its name."""
    known = KINDS.get(path) or KINDS.get(path.rpartition(".")[2])
    if known is not None:
        return known
    if isinstance(value, dict):
        assert value, f"{path}: say in KINDS what it may hold"
        properties = {name: _schema_of(each, f"{path}.{name}".lstrip(".")) for name, each in value.items()}
        return {"type": "object", "additionalProperties": False, "properties": properties}
    return {"type": {bool: "boolean", int: "integer", str: "string"}[type(value)]}


def _closed(*required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    more = {"required": list(required)} if required else {}
    return {"type": "object", "additionalProperties": False, "properties": properties, **more}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _strings(names: str) -> dict[str, dict[str, Any]]:
    return dict.fromkeys(names.split(), _STRING)


_STRING: Final = {"type": "string"}
_INTEGER: Final = {"type": "integer"}
_BOOLEAN: Final = {"type": "boolean"}
_OBJECT: Final = {"type": "object"}
_MAP: Final = {**_OBJECT, "additionalProperties": _STRING}
_NAMED: Final = {**_OBJECT, "required": ["name"], "properties": {"name": _STRING}}
_COUNT: Final = {**_INTEGER, "minimum": 0}
_PORT: Final = {"type": ["integer", "string"]}
_REFERENCE: Final = _closed("name", name=_STRING, optional=_BOOLEAN)
_PEER: Final = _closed(
    namespaceSelector=_OBJECT, podSelector=_OBJECT, ipBlock=_closed("cidr", cidr=_STRING, **{"except": _list(_STRING)})
)
_POLICY_PORTS: Final = _list(_closed(protocol=_STRING, port=_PORT, endPort=_INTEGER))
_PROBE: Final = _closed(
    **dict.fromkeys(
        ("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold", "successThreshold"), _COUNT
    )
)
_MAPS: Final = (
    "annotations",
    "commonAnnotations",
    "commonLabels",
    "labels",
    "nodeSelector",
    "podAnnotations",
    "podLabels",
)
_OBJECTS: Final = ("affinity", "extraPodSpec", "podSecurityContext", "securityContext")
_MOUNT: Final = _strings("name mountPath subPath subPathExpr mountPropagation recursiveReadOnly")
KINDS: Final[dict[str, dict[str, Any]]] = {
    **dict.fromkeys(_MAPS, _MAP),
    **dict.fromkeys(_OBJECTS, _OBJECT),
    **dict.fromkeys(("extraVolumes", "initContainers", "sidecars"), _list(_NAMED)),
    **dict.fromkeys(("hostnames", "hosts"), _list(_STRING)),
    **dict.fromkeys(("minAvailable", "service.targetPort"), _PORT),
    **dict.fromkeys(("probes.liveness", "probes.readiness", "probes.startup"), _PROBE),
    **dict.fromkeys(("networkPolicy.callers", "networkPolicy.monitoring"), _list(_PEER)),
    "autoscaling.behavior": _closed(scaleDown=_OBJECT, scaleUp=_OBJECT),
    "autoscaling.metrics": {**_list({**_OBJECT, "required": ["type"]}), "minItems": 1},
    "envFrom": _list(_closed(prefix=_STRING, secretRef=_REFERENCE, configMapRef=_REFERENCE)),
    "extraEnv": _list(_closed("name", name=_STRING, value=_STRING, valueFrom=_OBJECT)),
    "extraVolumeMounts": _list(_closed("name", "mountPath", **_MOUNT, readOnly=_BOOLEAN)),
    "httpRoute.parentRefs": _list(_closed("name", **_strings("group kind namespace name sectionName"), port=_INTEGER)),
    "httpRoute.timeouts": _closed(request=_STRING, backendRequest=_STRING),
    "imagePullSecrets": _list(_closed("name", name=_STRING)),
    "ingress.tls": _list(_closed(hosts=_list(_STRING), secretName=_STRING)),
    "networkPolicy.egress": _list(_closed("to", to=_list(_PEER), ports=_POLICY_PORTS)),
    "networkPolicy.ingress": _list(_closed("from", ports=_POLICY_PORTS, **{"from": _list(_PEER)})),
    "paths": {**_list({**_STRING, "pattern": "^/"}), "minItems": 1},
    "resources": _closed(requests=_OBJECT, limits=_OBJECT, claims=_list(_NAMED)),
    "secretKeys": _list({**_STRING, "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}),
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "tolerations": _list(_closed(**_strings("key operator value effect"), tolerationSeconds=_INTEGER)),
    "topologySpreadConstraints": _list({**_OBJECT, "required": ["maxSkew", "topologyKey", "whenUnsatisfiable"]}),
    "updateStrategy": _closed(type={"enum": ["RollingUpdate", "OnDelete"]}, rollingUpdate=_OBJECT),
}
"""What is empty by default, or Kubernetes' own, by its path or by its last name."""


if __name__ == "__main__":
    for path, text in (generated() | api_docs.generated()).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
