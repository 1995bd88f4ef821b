"""The files for running the gateway elsewhere agree with the program and with each other."""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from gateway import EXIT_WRONG, __version__, config
from gateway.config import Config, Placeholders
from gateway.config.leaf import duration_seconds
from gateway.config.models import Status
from gateway.http.connection import EdgeSettings
from gateway.observe.status import LIVE_PATH, METRICS_PATH, READY_PATH
from gateway.options import CONFIG_PATH, parser
from tests.support.demo import DemoProcess
from tests.support.deploying import CHART, generated

ROOT = Path(__file__).parents[2]
# After the delay and the drain: the final commands of attempts, and closing.
LAST_WORDS_SECONDS = 10.0
# What a gateway takes with a full cache and nothing at work.
BASE_BYTES = 128 * 1024 * 1024
STATE_DIR = str(Config.model_fields["state_dir"].default)
CHECKLIST = (ROOT / "docs" / "operate" / "release.md").read_text()
ALERTS = (ROOT / "deploy" / "alerts.yml").read_text()
# What the alerts call what they watch.
(JOB,) = set(re.findall(r'job="([^"]+)"', ALERTS))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def stopping_seconds(asked: Config) -> float:
    return asked.shutdown.delay + asked.shutdown.drain_timeout + LAST_WORDS_SECONDS


def config_of(arguments: list[str]) -> PurePosixPath:
    """The configuration that a command line of the program names."""
    chosen = parser().parse_args(arguments)
    assert chosen.command in ("run", "check")
    return PurePosixPath(chosen.config)


def dockerfile() -> list[tuple[str, str]]:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in whole.splitlines() if line)]


def final(instruction: str) -> str:
    stages = [index for index, (word, _) in enumerate(dockerfile()) if word == "FROM"]
    (found,) = [rest for word, rest in dockerfile()[stages[-1] :] if word == instruction]
    return found


def test_the_image() -> None:
    """It runs the program as usual, as a number that may write its volume, and is built of what is there."""
    program, *arguments = json.loads(final("ENTRYPOINT")) + json.loads(final("CMD"))
    assert (program, config_of(arguments)) == ("idempotency-gateway", CONFIG_PATH)
    user, group = map(int, final("USER").split(":"))
    assert user > 0 < group
    assert final("VOLUME") == STATE_DIR
    assert final("RUN") == f"install -d -m 0700 -o {user} -g {group} {STATE_DIR}"
    copied = [rest.split()[:-1] for word, rest in dockerfile() if word == "COPY" and "--from" not in rest]
    filters = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in filters
    for source in (name.removeprefix("./") for names in copied for name in names):
        assert (ROOT / source).exists()
        assert f"!{source}" in filters or f"!{source}/" in filters
    assert {rest.split()[0] for word, rest in dockerfile() if word == "FROM"} == {"${BASE}"}


def test_the_health_checks_are_right_about_health(tmp_path: Path) -> None:
    """The very code of each succeeds at what serves, and fails where nobody listens."""
    command = json.loads(final("HEALTHCHECK").partition("CMD ")[2])
    assert command[:2] == ["python", "-c"]
    exposed = final("EXPOSE").split()
    assert f"', {exposed[1]}," in command[2]
    assert f"'{READY_PATH}'" in command[2]
    with DemoProcess(tmp_path) as demo:
        assert check_health(command, exposed[1], demo.status_port) == 0
    assert check_health(command, exposed[1], demo.status_port) != 0
    kind, *command = SERVICES["upstream"]["healthcheck"]["test"]
    assert kind == "CMD"
    port = str(parser().parse_args(SERVICES["upstream"]["command"]).port)
    (alone := tmp_path / "alone").mkdir()
    with DemoProcess(alone, "--upstream-only") as demo:
        assert check_health(command, port, demo.port) == 0
    assert check_health(command, port, demo.port) != 0


def check_health(command: list[str], its_port: str, port: int) -> int:
    """The exit status of a check, asked of another port."""
    code = command[2].replace(its_port, str(port))
    return subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode


COMPOSE: dict[str, Any] = read(ROOT / "docker-compose.yml")
SERVICES: dict[str, Any] = COMPOSE["services"]
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def environment(service: str) -> dict[str, str]:
    """What a service has in its environment when nothing is set outside."""
    return {name: _VARIABLE.sub(r"\2", value) for name, value in SERVICES[service].get("environment", {}).items()}


def mounts(service: str) -> dict[str, str]:
    return {(parts := volume.split(":"))[1]: parts[0] for volume in SERVICES[service].get("volumes", [])}


@pytest.fixture
def composed() -> Config:
    """The configuration that the composed gateway reads, in the environment that it has."""
    source = mounts("gateway")[str(CONFIG_PATH)]
    return config.load(ROOT / source, environment("gateway"))


def test_the_composed_gateway(composed: Config) -> None:
    """Its ports, upstream and volumes are those of its configuration, and it may end in peace."""
    published = [tuple(port.split(":")) for port in SERVICES["gateway"]["ports"]]
    ports = (composed.listen.address.port, composed.status.listen.port)
    assert published == [("127.0.0.1", str(port), str(port)) for port in ports]
    assert final("EXPOSE").split() == [str(port) for port in ports]
    assert composed.listen.address.host == composed.status.listen.host == "0.0.0.0"
    chosen = parser().parse_args(SERVICES["upstream"]["command"])
    assert str(composed.upstream.url) == f"http://upstream:{chosen.port}"
    assert all(need == {"condition": "service_healthy"} for need in SERVICES["gateway"]["depends_on"].values())
    assert (duration_seconds(SERVICES["gateway"]["stop_grace_period"]) or 0) >= stopping_seconds(composed)
    assert mounts("gateway")[str(composed.state_dir)] == "gateway-state"
    used = {source for service in SERVICES for source in mounts(service).values() if not source.startswith(".")}
    assert used == set(COMPOSE["volumes"])


KUSTOMIZE = ROOT / "deploy" / "kustomize"
COMMENTS = {"edge": KUSTOMIZE / "edge", "sidecar": KUSTOMIZE / "sidecar"}
DIRECTORIES = {"edge": KUSTOMIZE / "edge", "sidecar": KUSTOMIZE / "overlays" / "example-sidecar"}


def kustomization(directory: Path) -> dict[str, Any]:
    """The kustomization of a directory. Every file that it names exists."""
    whole: dict[str, Any] = read(directory / "kustomization.yaml")
    for name in (*whole.get("resources", ()), *whole.get("components", ())):
        assert (directory / name).exists(), (directory, name)
    return whole


def manifests(name: str) -> dict[str, dict[str, Any]]:
    """The objects of a kustomization by kind: its resources, the ConfigMap, and what its components add to pods."""
    directory = DIRECTORIES[name]
    whole = kustomization(directory)
    (generator,) = whole["configMapGenerator"]
    data = {file: (directory / file).read_text() for file in generator["files"]}
    documents = [{"kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data}]
    for file in whole["resources"]:
        documents += yaml.safe_load_all((directory / file).read_text())
    kinds = {"Headless" * is_headless(document) + document["kind"]: document for document in documents}
    assert len(kinds) == len(documents)
    for component in whole.get("components", ()):
        (patch,) = kustomization(directory / component)["patches"]
        label, value = patch["target"]["labelSelector"].split("=")
        document = kinds[patch["target"]["kind"]]
        assert document["metadata"]["labels"][label] == value
        added = read(directory / component / patch["path"])["spec"]["template"]["spec"]
        pod = document["spec"]["template"]["spec"]
        assert not (added.keys() & pod.keys()) - {"containers"}
        pod |= {**added, "containers": pod["containers"] + added["containers"]}
    return kinds


def is_headless(document: Mapping[str, Any]) -> bool:
    return document["kind"] == "Service" and document["spec"].get("clusterIP") == "None"


def workload(kinds: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """What makes the pods: a deployment, or a stateful set where each keeps its state."""
    (found,) = (kinds[kind]["spec"] for kind in ("Deployment", "StatefulSet") if kind in kinds)
    assert isinstance(found, dict)
    return found


def containers(kinds: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in workload(kinds)["template"]["spec"]["containers"]}


def deployed(kinds: Mapping[str, dict[str, Any]]) -> Config:
    """The configuration in the manifest, read in the environment of its container."""
    provided = {each["name"]: "k" * 32 for each in containers(kinds)["gateway"]["env"]}
    (text,) = kinds["ConfigMap"]["data"].values()
    return config.parse(text, environ=provided)


both = pytest.mark.parametrize("name", ["sidecar", "edge"])


@both
def test_the_pod_is_as_its_configuration(name: str) -> None:
    """Files, variables, ports, probes, image and grace period; a change of it starts the pods anew."""
    kinds = manifests(name)
    pod, gateway, asked = workload(kinds)["template"]["spec"], containers(kinds)["gateway"], deployed(kinds)
    ((file, text),) = kinds["ConfigMap"]["data"].items()
    path = config_of(gateway["args"])
    assert path.name == file
    assert {"name": "config", "mountPath": str(path.parent), "readOnly": True} in gateway["volumeMounts"]
    assert {"name": "state", "mountPath": str(asked.state_dir)} in gateway["volumeMounts"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    kept = {each["metadata"]["name"] for each in workload(kinds).get("volumeClaimTemplates", ())}
    assert volumes["config"]["configMap"]["name"] == kinds["ConfigMap"]["metadata"]["name"]
    assert {each["name"] for each in gateway["volumeMounts"]} == set(volumes) | kept
    assert config.notices(asked) == ()
    assert {each["name"] for each in gateway["env"]} == set(re.findall(r"\$\{(\w+)\}", text))
    comment = (COMMENTS[name] / "kustomization.yaml").read_text().partition("apiVersion")[0]
    for each in gateway["env"]:
        secret = each["valueFrom"]["secretKeyRef"]
        assert secret["key"] == each["name"]
        assert f"generic {secret['name']} " in comment
        assert f"--from-literal={each['name']}=" in comment
    ports = {port["name"]: port["containerPort"] for port in gateway["ports"]}
    assert ports == {"http": asked.listen.address.port, "status": asked.status.listen.port}
    assert asked.listen.address.host == asked.status.listen.host == "0.0.0.0"
    paths = {"startupProbe": LIVE_PATH, "livenessProbe": LIVE_PATH, "readinessProbe": READY_PATH}
    asks = {probe: {"path": path, "port": "status"} for probe, path in paths.items()}
    assert {probe: gateway[probe]["httpGet"] for probe in paths} == asks
    assert [port["targetPort"] for port in kinds["Service"]["spec"]["ports"]] == ["http"]
    # Not ready before the listener closes: the delay is longer than the probe needs to notice.
    probe = gateway["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"] < asked.shutdown.delay
    assert pod["terminationGracePeriodSeconds"] >= stopping_seconds(asked)
    assert gateway["image"] == f"idempotency-gateway:{__version__}"
    user, group = map(int, final("USER").split(":"))
    assert gateway["securityContext"] == {
        "runAsUser": user,
        "runAsGroup": group,
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["fsGroup"] == group
    assert "disableNameSuffixHash" not in str(kustomization(DIRECTORIES[name]))
    assert all("subPath" not in each for each in gateway["volumeMounts"])


@both
def test_labels_select_the_pods_of_the_manifest(name: str) -> None:
    kinds = manifests(name)
    specs = {kind: document["spec"] for kind, document in kinds.items() if "spec" in document}
    selectors = [workload(kinds)["selector"]["matchLabels"]]
    selectors += [specs[kind]["selector"] for kind in ("Service", "HeadlessService") if kind in specs]
    if "PodDisruptionBudget" in specs:
        selectors.append(specs["PodDisruptionBudget"]["selector"]["matchLabels"])
        assert specs["PodDisruptionBudget"]["minAvailable"] < workload(kinds)["replicas"]
    if "NetworkPolicy" in specs:
        selectors.append(specs["NetworkPolicy"]["podSelector"]["matchLabels"])
        admitted = {port["port"] for rule in specs["NetworkPolicy"]["ingress"] for port in rule["ports"]}
        assert admitted == {port["name"] for port in containers(kinds)["gateway"]["ports"]}
    assert selectors == [workload(kinds)["template"]["metadata"]["labels"]] * len(selectors)


@both
def test_the_pod_has_room_for_what_the_configuration_admits(name: str) -> None:
    """As many bodies as may be at work or on their way fit into the volume, and what is held of them into memory."""
    kinds = manifests(name)
    asked = deployed(kinds)
    bodies = 2 * asked.limits.max_in_flight
    rooms = [
        each["emptyDir"]["sizeLimit"]
        for each in workload(kinds)["template"]["spec"]["volumes"]
        if each["name"] == "state"
    ]
    claims = workload(kinds).get("volumeClaimTemplates", ())
    (room,) = [*rooms, *(claim["spec"]["resources"]["requests"]["storage"] for claim in claims)]
    assert bodies * max(route.body.max_bytes for route in asked.routes) <= quantity_bytes(room)
    memory = quantity_bytes(containers(kinds)["gateway"]["resources"]["limits"]["memory"])
    held = bodies * max(route.body.spool_over for route in asked.routes)
    assert BASE_BYTES + held + asked.store.cache_bytes + EdgeSettings().unread_bytes_max <= memory


def test_the_monitor_of_the_operator_finds_the_edge() -> None:
    """It selects the service that names pods, and no other, by its labels, and its port by its name; the job is that of
    the alerts."""
    (labels,) = kustomization(DIRECTORIES["edge"])["labels"]
    pairs = labels["pairs"]
    assert pairs["app.kubernetes.io/version"] == __version__
    kinds = manifests("edge")
    assert workload(kinds)["selector"]["matchLabels"].items() <= pairs.items()
    headless = kinds["HeadlessService"]
    assert workload(kinds)["serviceName"] == headless["metadata"]["name"] != kinds["Service"]["metadata"]["name"]
    monitor = read(KUSTOMIZE / "components" / "prometheus-operator" / "service-monitor.yaml")["spec"]
    on_service = pairs | headless["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= on_service.items()
    assert not monitor["selector"]["matchLabels"].items() <= pairs.items(), "it is the headless one alone"
    (endpoint,) = monitor["endpoints"]
    assert [endpoint["port"]] == [port["name"] for port in headless["spec"]["ports"]]
    assert endpoint["path"] == METRICS_PATH
    assert on_service[monitor["jobLabel"]] == JOB


def test_the_example_is_the_edge_with_its_components() -> None:
    """Its configuration reads the variables of the edge and of the console, which listens on loopback; it starts."""
    directory = KUSTOMIZE / "overlays" / "example"
    whole = kustomization(directory)
    assert [(directory / name).resolve() for name in whole["resources"]] == [KUSTOMIZE / "edge"]
    assert [each["newTag"] for each in whole["images"]] == [__version__]
    (patch,) = kustomization(KUSTOMIZE / "components" / "console")["patches"]
    (container,) = yaml.safe_load(patch["patch"])["spec"]["template"]["spec"]["containers"]
    names = [each["name"] for each in (*containers(manifests("edge"))["gateway"]["env"], *container["env"])]
    text = (directory / "gateway.yaml").read_text()
    assert set(names) == set(re.findall(r"\$\{(\w+)\}", text))
    assert config.parse(text, environ=dict.fromkeys(names, "k" * 32)).admin.listen.host == "127.0.0.1"


def test_generated_files_are_as_they_are_made() -> None:
    """And the chart has the version, and the configuration of the edge."""
    for path, text in generated().items():
        assert path.read_text("utf-8") == text, f"{path.relative_to(ROOT)}: make docs"
    chart = read(CHART / "Chart.yaml")
    assert chart["version"] == chart["appVersion"] == __version__
    assert VALUES["config"] == read(DIRECTORIES["edge"] / "gateway.yaml")
    assert VALUES["secretKeys"] == [each["name"] for each in containers(manifests("edge"))["gateway"]["env"]]


EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
VALUES: dict[str, Any] = read(CHART / "values.yaml")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_of_the_chart_has_what_its_configuration_reads(example: Path) -> None:
    """`check` has no remark on it; each variable and each file comes from somewhere, and nothing else does."""
    values = merged(VALUES, read(example))
    assert values.keys() == VALUES.keys()
    text = yaml.safe_dump(values["config"])
    assert config.notices(config.parse(text, environ={}, stand_in=Placeholders())) == ()
    assert bool(values["existingSecret"]) == bool(values["secretKeys"])
    variables = {*values["secretKeys"], *(each["name"] for each in values["extraEnv"])}
    assert variables == set(re.findall(r"\$\{(\w+)\}", text))
    sources = {name: each for name, each in values.items() if isinstance(each, dict)}
    files = {name for name, each in sources.items() if each.get("secretName") or each.get("configMapName")}
    places = {f"/run/secrets/{re.sub('([A-Z])', lambda found: '-' + found[0].lower(), name)}" for name in files}
    places |= {each["mountPath"] for each in values["extraVolumeMounts"]}
    assert places == set(re.findall(r"/run/secrets/[a-z-]+(?=/)", text))


def merged(values: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The values of the chart with those that are given, as Helm merges them: null takes one away."""
    whole = copy.deepcopy(values)
    for name, value in given.items():
        if value is None:
            whole.pop(name, None)
        elif isinstance(value, dict) and isinstance(whole.get(name), dict):
            whole[name] = merged(whole[name], value)
        else:
            whole[name] = value
    return whole


def test_what_prometheus_scrapes_is_the_job_of_the_alerts() -> None:
    """Outside of a cluster and in one: the job's label, the path, and in a cluster the names that it looks for."""
    for file in ("prometheus.yml", "prometheus-kubernetes.yml"):
        whole = read(ROOT / "deploy" / "prometheus" / file)
        (scrape,) = whole["scrape_configs"]
        assert (scrape["job_name"], scrape["metrics_path"]) == (JOB, METRICS_PATH)
        assert whole["rule_files"] == ["../alerts.yml"]
        targets = [each["targets"] for each in scrape.get("static_configs", ())]
        assert targets in ([], [[str(Status().listen)]])
        relabels = scrape.get("relabel_configs", ())
        assert "job" not in {each.get("target_label") for each in relabels}
    (keep,) = (each for each in relabels if each.get("action") == "keep")
    assert [label.removeprefix("__meta_kubernetes_pod_") for label in keep["source_labels"]] == [
        "container_name",
        "container_port_name",
    ]
    container, port = keep["regex"].split(";")
    for name in ("sidecar", "edge"):
        kinds = manifests(name)
        ports = {each["name"]: each["containerPort"] for each in containers(kinds)[container]["ports"]}
        assert ports[port] == deployed(kinds).status.listen.port
        # Nothing else finds the pods under the label of another job.
        assert "prometheus.io" not in str(kinds)


def quantity_bytes(text: str) -> int:
    number, unit = text[:-2], text[-2:]
    return int(number) << {"Mi": 20, "Gi": 30}[unit]


def test_the_service_beside_the_gateway_outlives_it() -> None:
    """The service listens where the gateway looks for it, and its preStop hook is as long as the gateway's stopping."""
    kinds = manifests("sidecar")
    service, asked = containers(kinds)["service"], deployed(kinds)
    assert f"http://{service['env'][0]['value']}" == str(asked.upstream.url)
    program, seconds = service["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    grace = workload(kinds)["template"]["spec"]["terminationGracePeriodSeconds"]
    assert stopping_seconds(asked) <= int(seconds) < grace


def test_the_unit() -> None:
    """It runs, reloads and stops the program as that takes it."""
    text = (ROOT / "deploy" / "systemd" / "idempotency-gateway.service").read_text()
    pairs = re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)
    settings = dict(pairs)
    assert sorted(name for name, _ in pairs if name.startswith("Exec")) == ["ExecReload", "ExecStart"]
    program, *arguments = shlex.split(settings["ExecStart"])
    assert PurePosixPath(program).name == "idempotency-gateway"
    assert config_of(arguments) == CONFIG_PATH
    assert shlex.split(settings["ExecReload"]) == [program, *(word.replace("run", "reload") for word in arguments)]
    assert f"/var/lib/{settings['StateDirectory']}" == STATE_DIR
    defaults = config.load(ROOT / "config" / "compose.yaml", environment("gateway"))
    assert (duration_seconds(settings["TimeoutStopSec"]) or 0) >= stopping_seconds(defaults)
    file = settings["EnvironmentFile"].removeprefix("-")
    assert PurePosixPath(file).parent == CONFIG_PATH.parent
    fixed = {"DynamicUser": "yes", "KillSignal": "SIGTERM", "Restart": "on-failure"}
    assert settings.items() >= {**fixed, "RestartPreventExitStatus": str(EXIT_WRONG)}.items()


def test_what_the_package_needs_besides_python_is_in_it() -> None:
    """Every file of the package that is no module is matched by a pattern of its data."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        patterns = tomllib.load(file)["tool"]["setuptools"]["package-data"]["gateway"]
    package = ROOT / "gateway"
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others - packed == set()
