"""What Helm makes of the chart, and what Kubernetes would say of it. Run by `python -m tests.deployed`."""

from __future__ import annotations

import copy
import hashlib
import re
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml
from openapi_spec_validator import validate as validate_openapi

from gateway import __version__
from tests.docs import test_deploy as deploying
from tests.release import SUMS, release
from tests.support.deploying import CHART

VERSIONS = ("1.27", "1.31", "1.37")
# Whom the objects belong to, and what makes a change of the configuration start the pods anew.
LABELS_OF_A_TOOL = ("app.kubernetes.io/managed-by", "helm.sh/chart")
CHECKSUMS = {"checksum/config", "checksum/secret"}
OWN_KINDS = ("ServiceMonitor", "PrometheusRule")


def rendered(**values: Any) -> dict[str, dict[str, Any]]:
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
    objects = [*rendered().values(), *kustomized().values(), *deploying.manifests("sidecar").values()]
    for document in objects:
        whole = {"apiVersion": "v1"} | document
        kubernetes_validate.validate(whole, version, strict=True)
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
    assert check["volumeMounts"] == gateway["volumeMounts"][:-1]
    # No Service and no policy takes its pod for a gateway.
    selected = kinds["Service"]["spec"]["selector"].items()
    assert not selected <= kinds["Pod"]["metadata"]["labels"].items()


@pytest.fixture(params=deploying.EXAMPLES, ids=lambda path: path.stem)
def example(request: pytest.FixtureRequest) -> dict[str, Any]:
    given: dict[str, Any] = yaml.safe_load(request.param.read_text())
    return given


def test_kubernetes_takes_an_example(example: dict[str, Any]) -> None:
    """The schema takes its values, each version of Kubernetes every object that it defines, and the gateway its
    configuration."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(chart.merge_values(example))
    kinds = rendered(**example)
    for kind, document in kinds.items():
        for version in () if kind in (*OWN_KINDS, "HTTPRoute") else VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)
    asked = deploying.merged(deploying.VALUES, example)["config"]
    assert yaml.safe_load(kinds["ConfigMap"]["data"]["gateway.yaml"]) == asked


def test_the_pod_of_an_example_fits_together(example: dict[str, Any]) -> None:
    """Each mount has its volume and each volume a mount; ports and probes are those of the configuration."""
    kinds = rendered(**example)
    pod, claims = kinds["StatefulSet"]["spec"]["template"]["spec"], kinds["StatefulSet"]["spec"]["volumeClaimTemplates"]
    volumes = {each["name"] for each in (*pod["volumes"], *(claim["metadata"] for claim in claims))}
    mounts = [
        mount for each in (*pod["containers"], *pod.get("initContainers", ())) for mount in each.get("volumeMounts", ())
    ]
    assert {mount["name"] for mount in mounts} == volumes
    gateway = pod["containers"][0]
    asked = deploying.config.parse(
        kinds["ConfigMap"]["data"]["gateway.yaml"], environ={}, stand_in=deploying.Placeholders()
    )
    assert {port["name"]: port["containerPort"] for port in gateway["ports"]} == {
        "http": asked.listen.address.port,
        "status": asked.status.listen.port,
    }
    assert pod["terminationGracePeriodSeconds"] >= deploying.stopping_seconds(asked)
    assert kinds["Pod"]["spec"]["volumes"] == pod["volumes"]
    assert kinds["Pod"]["spec"]["containers"][0]["volumeMounts"] == gateway["volumeMounts"][:-1]


def test_a_value_for_each_field_of_a_pod() -> None:
    as_given: dict[str, Any] = {
        "affinity": {"nodeAffinity": {}},
        "imagePullSecrets": [{"name": "registry"}],
        "initContainers": [{"name": "first", "image": "busybox"}],
        "nodeSelector": {"disk": "ssd"},
        "priorityClassName": "high",
        "tolerations": [{"operator": "Exists"}],
    }
    given: dict[str, Any] = as_given | {
        "envFrom": [{"configMapRef": {"name": "proxy"}}],
        "extraEnv": [{"name": "A", "value": "1"}],
        "extraPodSpec": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}]},
        "serviceAccount": {"name": "there", "automount": True},
        "sidecars": [{"name": "beside", "image": "busybox"}],
        "state": {"ephemeral": True},
        "updateStrategy": {"type": "OnDelete"},
    }
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(chart.merge_values(given))
    stateful_set = rendered(**given)["StatefulSet"]
    kubernetes_validate.validate(stateful_set, VERSIONS[-1], strict=True)
    workload = stateful_set["spec"]
    pod = workload["template"]["spec"]
    assert pod.items() >= (as_given | given["extraPodSpec"]).items()
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("there", True)
    gateway, beside = pod["containers"]
    assert (beside, gateway["env"][-1]) == (given["sidecars"][0], given["extraEnv"][0])
    assert gateway["envFrom"] == given["envFrom"]
    assert {"name": "state", "emptyDir": {"sizeLimit": "10Gi"}} in pod["volumes"]
    assert "volumeClaimTemplates" not in workload
    assert workload["updateStrategy"] == given["updateStrategy"]


def test_nobody_is_admitted_by_an_empty_list() -> None:
    """A rule of a NetworkPolicy without a peer would admit everybody."""
    policy = rendered(networkPolicy={"callers": [], "monitoring": []})["NetworkPolicy"]
    kubernetes_validate.validate(policy, VERSIONS[-1], strict=True)
    spec = policy["spec"]
    assert (spec["policyTypes"], spec["ingress"]) == (["Ingress"], None)


SQLITE = {"store": {"durable": "sqlite:///a.db"}}
NOT_RENDERED: dict[str, tuple[dict[str, Any], str]] = {
    "several records": ({"config": SQLITE}, "a record of its own"),
    "record without a volume": (
        {"config": SQLITE, "replicas": 1, "state": {"ephemeral": True}},
        "would end with its pod",
    ),
    "file from nowhere": (
        {"config": {"upstream": {"tls": {"ca": "/run/secrets/upstream-ca/ca.crt"}}}},
        "write upstreamCa.secretName",
    ),
    "two sources": (
        {"clientCa": {"secretName": "a", "configMapName": "b"}},
        "clientCa: a secretName or a configMapName",
    ),
    "probes": ({"config": {"status": {"listen": "127.0.0.1:8081"}}}, "probes come from outside"),
    "no gateway": ({"httpRoute": {"enabled": True}}, "which Gateway takes it"),
}


@pytest.mark.parametrize(("values", "said"), NOT_RENDERED.values(), ids=NOT_RENDERED)
def test_what_could_not_work_is_not_rendered(values: dict[str, Any], said: str) -> None:
    """It is said what to write."""
    with pytest.raises(helm_python.HelmError, match=re.escape(said)):
        rendered(**values)


def test_what_the_operator_needs_is_the_same() -> None:
    """The monitor and the rules are those of kustomize's component."""
    directory = deploying.KUSTOMIZE / "components" / "prometheus-operator"
    kinds = rendered(prometheusOperator={"enabled": True, "labels": {"release": "kube-prometheus-stack"}})
    for kind, file in zip(OWN_KINDS, ("service-monitor.yaml", "prometheus-rule.yaml"), strict=True):
        assert kinds[kind]["spec"] == yaml.safe_load((directory / file).read_text())["spec"]
        assert kinds[kind]["metadata"]["labels"]["release"] == "kube-prometheus-stack"


def test_a_wrong_value_is_refused_before_anything_is_installed() -> None:
    """By the schema, which names it."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema()
        for values, named in (
            ({"config": {"listem": "0.0.0.0:8080"}}, "listem"),
            ({"existingSecret": ""}, "existingSecret"),
            ({"replica": 2}, "replica"),
            ({"replicas": "three"}, "replicas"),
            ({"tls": {"secret": "a"}}, "secret"),
            ({"image": {"name": "a"}}, "name"),
            ({"networkPolicy": {"callers": [{"podSelectors": {}}]}}, "podSelectors"),
            ({"extraEnv": [{"name": "A", "values": "1"}]}, "values"),
            ({"probes": {"liveness": {"period": 1}}}, "period"),
        ):
            with pytest.raises(helm_python.HelmError, match=named):
                chart.validate_schema(chart.merge_values(values))


def test_nothing_is_wrong_with_the_chart_or_the_openapi_fragment() -> None:
    """By Helm's own linter, and by the schema of OpenAPI."""
    found = helm_python.lint(str(CHART))
    assert [each for each in found["messages"] if each["severity"] not in ("INFO", "info", 1)] == [], found
    validate_openapi(deploying.read(deploying.ROOT / "docs" / "api" / "openapi.yaml"))


def test_a_release_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are those of the page, their digests are right, and the chart has the image by its digest."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    image = f"registry.example.com/idempotency-gateway@sha256:{'0123456789abcdef' * 4}"
    files = {path.name: path for path in release(tmp_path, image)}
    table = deploying.CHECKLIST.partition("## What is in dist")[2]
    assert set(files) == set(re.findall(r"`(\w[\w.-]+)`", "\n".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))))
    sums = dict(line.split("  ")[::-1] for line in files[SUMS].read_text().splitlines())
    assert sums == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if name != SUMS}
    (archive,) = (path for path in files.values() if path.suffix == ".tgz")
    with helm_python.Chart.load_archive(archive.read_bytes()) as chart:
        pod = yaml.safe_load(
            chart.render({}, name="a", namespace="b")["idempotency-gateway/templates/statefulset.yaml"]
        )["spec"]["template"]["spec"]
    repository, _, digest = image.partition("@")
    assert pod["containers"][0]["image"] == f"{repository}:{__version__}@{digest}"
    again = release(tmp_path / "again", image)[0]
    assert again.read_bytes() == files[again.name].read_bytes(), "the wheel is the same to the bit"
    with pytest.raises(SystemExit, match="expected REPOSITORY@sha256"):
        release(tmp_path, "idempotency-gateway:latest")
