"""What Helm makes of the chart, and what Kubernetes would say of it. Run by `python -m tests.deployed`."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml
from openapi_spec_validator import validate as validate_openapi

from tests.docs import test_deploy as deploying
from tests.support.deploying import CHART

VERSIONS = ("1.27", "1.31", "1.37")
# Whom the objects belong to, and what makes a change of the configuration start the pods anew.
LABELS_OF_A_TOOL = ("app.kubernetes.io/managed-by", "helm.sh/chart")
CHECKSUMS = {"checksum/config", "checksum/secret"}
OWN_KINDS = ("ServiceMonitor", "PrometheusRule")


def rendered(**values: Any) -> dict[str, dict[str, Any]]:
    """The objects of the chart, by kind."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(values, name="idempotency-gateway", namespace="shop")
    kinds: dict[str, dict[str, Any]] = {}
    for name, text in sorted(files.items()):
        for document in () if name.endswith(".txt") else filter(None, yaml.safe_load_all(text)):
            kind = "Headless" * deploying.is_headless(document) + document["kind"]
            kind += "Dashboard" * document["metadata"]["name"].endswith("-dashboard")
            assert kind not in kinds
            kinds[kind] = document
    return kinds


def kustomized() -> dict[str, dict[str, Any]]:
    """The objects of kustomize's edge, with the labels that it adds."""
    kinds = deploying.manifests("edge")
    (labels,) = deploying.kustomization(deploying.DIRECTORIES["edge"])["labels"]
    for document in kinds.values():
        metadata = document["metadata"]
        metadata["labels"] = labels["pairs"] | metadata.get("labels", {})
    kinds["ConfigMap"] |= {"apiVersion": "v1"}
    return kinds


def compared(document: dict[str, Any]) -> dict[str, Any]:
    """An object without what differs from tool to tool."""
    document = copy.deepcopy(document)
    for label in LABELS_OF_A_TOOL:
        document["metadata"]["labels"].pop(label, None)
    if document["kind"] == "ConfigMap":
        document["data"] = {name: yaml.safe_load(text) for name, text in document["data"].items()}
    if document["kind"] == "StatefulSet":
        pod = document["spec"]["template"]
        pod["metadata"].pop("annotations", None)
        pod["spec"]["containers"][0].pop("imagePullPolicy", None)
    return document


def test_helm_and_kustomize_make_the_same_objects() -> None:
    """Object by object; the chart has its test besides."""
    chart, edge = rendered(), kustomized()
    assert set(chart) - {"Pod"} == set(edge)
    for kind, document in edge.items():
        assert compared(chart[kind]) == compared(document), kind


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_the_objects(version: str) -> None:
    """Every object has the fields of its schema and no others."""
    objects = [*rendered().values(), *kustomized().values(), *deploying.manifests("sidecar").values()]
    for document in objects:
        whole = {"apiVersion": "v1"} | document
        kubernetes_validate.validate(whole, version, strict=True)


def test_a_misspelt_field_would_be_found() -> None:
    """The validation is strict."""
    wrong = kustomized()["Service"]
    wrong["spec"]["selectors"] = wrong["spec"].pop("selector")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_a_change_starts_the_pods_anew() -> None:
    """Of the configuration, and of the secret where that is said."""
    with helm_python.Chart.load(CHART) as chart:
        config = chart.values["config"]

    def sums(**values: Any) -> dict[str, str]:
        annotations = rendered(**values)["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]
        assert set(annotations) == CHECKSUMS
        return dict(annotations)

    first = sums()
    changed = sums(config=config | {"limits": {"max_in_flight": 300}})
    assert first["checksum/config"] != changed["checksum/config"]
    assert first["checksum/secret"] == changed["checksum/secret"] != sums(secretVersion="2")["checksum/secret"]


def test_an_image_by_its_digest() -> None:
    """It is in the name of the image, behind the tag; what is no digest is refused."""
    digest = f"sha256:{'0123456789abcdef' * 4}"
    (gateway,) = rendered(image={"digest": digest})["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert re.fullmatch(f"idempotency-gateway:[0-9.]+@{digest}", gateway["image"])
    with pytest.raises(Exception, match=r"image\.digest: expected sha256"):
        rendered(image={"digest": "latest"})


def test_the_test_of_the_chart_checks_what_the_gateway_runs_with() -> None:
    """The same image, configuration and variables, by the command `check`."""
    kinds = rendered()
    (gateway,) = kinds["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    (check,) = kinds["Pod"]["spec"]["containers"]
    assert kinds["Pod"]["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert check["args"] == ["check", *gateway["args"][1:]]
    for name in ("image", "env", "securityContext"):
        assert check[name] == gateway[name]
    assert check["volumeMounts"] == gateway["volumeMounts"][:1]
    # No Service and no policy takes its pod for a gateway.
    selected = kinds["Service"]["spec"]["selector"].items()
    assert not selected <= kinds["Pod"]["metadata"]["labels"].items()


def test_what_the_operator_needs_is_the_same() -> None:
    """The monitor and the rules are those of kustomize's component."""
    directory = deploying.KUSTOMIZE / "components" / "prometheus-operator"
    kinds = rendered(prometheusOperator={"enabled": True, "labels": {"release": "kube-prometheus-stack"}})
    for kind, file in zip(OWN_KINDS, ("service-monitor.yaml", "prometheus-rule.yaml"), strict=True):
        assert kinds[kind]["spec"] == yaml.safe_load((directory / file).read_text())["spec"]
        assert kinds[kind]["metadata"]["labels"]["release"] == "kube-prometheus-stack"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"config": {"listem": "0.0.0.0:8080"}}, "listem"),
        ({"existingSecret": ""}, "existingSecret"),
        ({"replica": 2}, "replica"),
        ({"replicas": "three"}, "replicas"),
    ],
    ids=["key of the gateway", "no secret", "key of the chart", "kind"],
)
def test_a_wrong_value_is_refused_before_anything_is_installed(values: dict[str, Any], named: str) -> None:
    """By the schema, which names it."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema()
        with pytest.raises(helm_python.HelmError, match=named):
            chart.validate_schema(chart.merge_values(values))


def test_the_chart_has_no_lint() -> None:
    """Helm's own linter finds nothing that is wrong."""
    found = helm_python.lint(str(CHART))
    assert [each for each in found["messages"] if each["severity"] not in ("INFO", "info", 1)] == [], found


def test_the_openapi_fragment_is_valid() -> None:
    """By the schema of OpenAPI."""
    path = Path(__file__).parents[2] / "docs" / "api" / "openapi.yaml"
    validate_openapi(yaml.safe_load(path.read_text()))
