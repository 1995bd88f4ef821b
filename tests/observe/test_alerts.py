"""The alerts, their runbook and the scrape file that we ship ask for what the gateway really exports and does.

`deploy/alerts_test.yml` has a firing and a quiet case of each alert. Here they are judged by `promql`, in the proof by
promtool itself (`tests.observe.promtool`).
"""

from __future__ import annotations

import ast
import logging
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.admin.commands import job_of
from gateway.config import Config
from gateway.observe.facts import BreakerChanged
from gateway.observe.logs import Line, as_json
from gateway.observe.metrics import Metrics
from gateway.options import OPERATORS, parser
from tests.admin.shell import CREATED
from tests.observe.promql import OF_COUNTERS, History, PromqlError, Selector, fires, history, seconds, selectors
from tests.observe.scrape import Scrape, Series, publish, scrape

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RUNBOOK = ROOT / "docs/operate/runbook.md"
ENTRIES = re.split(r"^## ", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]
SCRAPING: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
(JOB,) = SCRAPING["scrape_configs"]
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
# What Prometheus itself adds to every series, and the series that it makes of a scrape.
TARGET_LABELS = {"job": JOB["job_name"], "instance": JOB["static_configs"][0]["targets"][0]}
UP = Series("up", {}, 1.0, "gauge")
# What a gateway exports once something has given it a value: a reload, a certificate, an observed route.
ON_OCCASION = (Series("idempotency_tls_certificate_expiry_timestamp_seconds", {"use": "listen"}, 4e9, "gauge"),)
CASES: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "alerts_test.yml").read_text())["tests"]
TEMPLATE = r"\{\{ \$(value|labels\.\w+|externalLabels\.runbooks) \}\}"
# What a command of the runbook leaves to the reader.
GIVEN = {"OPERATION_ID": "00000000-0000-8000-8000-000000000000", "EVENT_ID": "evt_" + "a" * 26}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_what_and_where_and_is_silent_where_nothing_is_wrong(
    alert: dict[str, Any], fresh: Scrape
) -> None:
    """Every name, label and label value in its expression is exported by a gateway on which nothing happened yet; there
    it does not fire. It has a severity and a summary, and names only labels that its expression leaves."""
    assert faults(alert["expr"], fresh) == []
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    assert alert["annotations"]["summary"]
    for selector in selectors(alert["expr"]):
        (series, *_) = selected(selector, fresh)
        left = set(selector.groupings[-1]) if selector.groupings else series.labels.keys() | TARGET_LABELS.keys()
        for text in alert["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= left
            assert re.sub(TEMPLATE, "", text).count("{{") == 0
    histories = [
        History(series.name, {**series.labels, **TARGET_LABELS}, dict.fromkeys(range(0, 601, 60), series.value))
        for series in fresh.series
    ]
    assert not fires(alert["expr"], 0, histories, at=600, step=600)
    # How long a condition has to last outlives a scrape or two, and ends within the hour.
    assert 2 * seconds(SCRAPING["global"]["scrape_interval"]) <= seconds(alert.get("for", "1h")) <= 3600


@pytest.fixture
async def fresh() -> Scrape:
    """What a gateway exports before anything happened, its stores being up and its service not known to be down."""
    metrics = Metrics(["create_payment"], has_fast_tier=True, version="1", sinks=["ledger"])
    metrics.read_with(lambda: {"store_up": {"durable": 1, "fast": 1}})
    publish(metrics, BreakerChanged("http://127.0.0.1:9000", False))
    found = await scrape(metrics)
    there = {series.name for series in found.series}
    found.series += [UP, *(series for series in ON_OCCASION if series.name not in there)]
    return found


def faults(expression: str, fresh: Scrape) -> list[str]:
    """What is wrong with an expression, given what a fresh gateway exports."""
    found = []
    for selector in selectors(expression):
        series = selected(selector, fresh)
        if not series:
            found.append(f"{selector.metric} {selector.matchers} selects nothing")
            continue
        is_counter = series[0].type == "counter" or (series[0].type == "histogram" and "le" not in series[0].labels)
        if is_counter != bool(OF_COUNTERS & set(selector.functions)):
            found.append(f"{selector.metric} is a {series[0].type}")
        if is_counter and selector.window_seconds < 4 * seconds(SCRAPING["global"]["scrape_interval"]):
            found.append(f"the window of {selector.metric} holds too few scrapes")
        for labels in selector.groupings:
            missing = labels - series[0].labels.keys() - TARGET_LABELS.keys()
            found += [f"{selector.metric} has no label {label}" for label in sorted(missing)]
    return found


def selected(selector: Selector, fresh: Scrape) -> list[Series]:
    return [
        series
        for series in fresh.series
        if series.name == selector.metric
        and all({**series.labels, **TARGET_LABELS}.get(label) == value for label, value in selector.matchers.items())
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"].replace(" ", "-"))
def test_an_alert_fires_when_it_should_and_only_then(case: dict[str, Any]) -> None:
    """In each case of the file for promtool exactly the named alert fires, or none."""
    step = seconds(case["interval"])
    histories = [history(each["series"], each["values"], step) for each in case["input_series"]]
    (asked,) = case["promql_expr_test"]
    at = sum(seconds(part) for part in re.findall(r"\d+[smhd]", asked["eval_time"]))
    firing = [
        alert["alert"]
        for alert in ALERTS
        if fires(alert["expr"], seconds(alert.get("for", "0s")), histories, at=at, step=step)
    ]
    name, _, how = case["name"].partition(" ")
    assert firing == ([name] if how == "fires" else [])
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1}]
    assert asked.get("exp_samples", []) == (samples if how == "fires" else [])


def test_every_alert_has_a_firing_and_a_quiet_case_and_an_entry_in_the_runbook() -> None:
    """In the same order everywhere; and the alert links to its entry, below the address that Prometheus is given. Each
    entry says what it means, where to look and what to do, and its links lead to entries."""
    names = [alert["alert"] for alert in ALERTS]
    assert len(names) == len(set(names))
    assert [case["name"] for case in CASES] == [f"{name} {how}" for name in names for how in ("fires", "is quiet")]
    assert [entry.partition("\n")[0] for entry in ENTRIES] == names
    for alert, entry in zip(ALERTS, ENTRIES, strict=True):
        path = f"/{RUNBOOK.relative_to(ROOT)}#{alert['alert'].lower()}"
        assert alert["annotations"]["runbook_url"] == f"{{{{ $externalLabels.runbooks }}}}{path}"
        parts = re.findall(r"^- \*\*(\w+)\.\*\*", entry, re.MULTILINE)
        assert (parts[:3], parts[3:] in ([], ["Afterwards"])) == (["Means", "Look", "Do"], True)
        assert set(re.findall(r"\]\(#(\w+)\)", entry)) <= {name.lower() for name in names}


LABEL = "app.kubernetes.io/name=idempotency-gateway"
# Of kubectl: what follows the verb, with its options.
LOOKS = {
    "logs": rf"(POD|-l {LABEL} --prefix --tail=-1) (--since=1h|--previous --tail=50)",
    "get": rf"(pods -l {LABEL} -o wide|pvc -l {LABEL}|secrets --field-selector type=kubernetes.io/tls)",
    "top": rf"(pod POD|pods -l {LABEL}) --containers",
    "describe": "pod POD",
    "delete": "pod POD",
}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.partition("\n")[0])
def test_an_entry_of_the_runbook_can_be_followed(entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands are the program's, with options that go together. In Kubernetes each is one in a pod, with a name
    for the audit and files by way of its input; and what kubectl itself is asked is there: labels of the pods, and
    lines that the gateway logs."""
    monkeypatch.chdir(tmp_path)
    Path("response.txt").write_bytes(CREATED)
    for command in re.findall(r"`idempotency-gateway\s([^`]+)`", entry):
        chosen = parser().parse_args([GIVEN.get(word, word) for word in shlex.split(command)])
        if chosen.command in OPERATORS:
            job_of(chosen)
    text, _, block = entry.partition("- **In Kubernetes.**\n\n  ```sh\n")
    commands = [line.strip() for line in block.partition("  ```")[0].splitlines()]
    assert commands
    executed = []
    for command in commands:
        program, _, given = command.partition(" < ")
        asked, _, pattern = program.partition(" | grep ")
        verb, rest = asked.removeprefix("kubectl ").split(" ", 1)
        if verb != "exec":
            assert re.fullmatch(LOOKS[verb], rest), command
            assert bool(pattern) == ("--since" in rest)
            assert not pattern or is_logged(*shlex.split(pattern)), command
            continue
        where, _, words = rest.partition(" -- ")
        assert re.fullmatch(r"(-i )?(POD|sts/idempotency-gateway)", where), command
        assert where.startswith("-i ") == bool(given) == (" - " in words), command
        if words.startswith("idempotency-gateway "):
            executed.append(words.replace("--completed -", f"--completed {given}").replace(f"{STATE_DIR}/", ""))
        else:
            assert words == f"df -h {STATE_DIR}"
    told = [" ".join(each.split()) for each in re.findall(r"`(idempotency-gateway\s[^`]+)`", text)]
    assert sorted(executed) == sorted({f'{each} --by "$USER"' if "--why" in each else each for each in told})


STATE_DIR = Config.model_fields["state_dir"].default


def is_logged(pattern: str) -> bool:
    """Whether a line of the log can have this: a level as the lines have it, or a text of the program."""
    levels = (as_json(0.0, level, Line(""), None, None).decode() for level in (logging.WARNING, logging.ERROR))
    sources = (path.read_text() for path in (ROOT / "gateway").rglob("*.py"))
    return any(pattern in line for line in levels) or any(
        pattern in text for source in sources if pattern in source for text in said_by(source)
    )


def said_by(source: str) -> Iterator[str]:
    """The texts of a module, without docstrings."""
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_what_must_be_watched_is_watched() -> None:
    """Doubt, the durable store, mismatches, keyed requests without a route; what waits too long, and dead letters."""
    watched = {" ".join((one.metric, *one.matchers.values())) for alert in ALERTS for one in selectors(alert["expr"])}
    must = """in_doubt|store_up durable|requests_total key-reused|unprotected_requests_total no_route_keyed|
        oldest_backlog_seconds|lanes_stopped|dead_letters|breaker_open|paused|inbox_rejected_total"""
    assert {f"idempotency_{each.strip()}" for each in must.split("|")} <= watched
    after = {alert["alert"]: alert.get("for") for alert in ALERTS}
    patience = {"IdempotencyInDoubt": "5m", "IdempotencyBreakerOpen": "5m", "IdempotencyPaused": "1h"}
    assert {name: after[name] for name in patience} == patience


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("idempotency_indoubt > 0", "idempotency_indoubt {} selects nothing"),
        ('idempotency_store_up{tier="durabel"} == 0', "idempotency_store_up {'tier': 'durabel'} selects nothing"),
        ('idempotency_in_doubt{verdict="x"} > 0', "idempotency_in_doubt {'verdict': 'x'} selects nothing"),
        ("sum by (verdict) (idempotency_in_doubt) > 0", "idempotency_in_doubt has no label verdict"),
        ("increase(idempotency_in_doubt[5m]) > 0", "idempotency_in_doubt is a gauge"),
        ("idempotency_requests_total > 0", "idempotency_requests_total is a counter"),
        ("rate(idempotency_claims_total[15s]) > 0", "the window of idempotency_claims_total holds too few scrapes"),
    ],
)
def test_a_wrong_expression_is_noticed(expression: str, fault: str, fresh: Scrape) -> None:
    assert fault in faults(expression, fresh)


def test_what_is_no_expression_is_refused() -> None:
    for slip in ("sum(x > 0", "sum by (route (x)) > 0", "increse(x[5m]) > 0", "x{route=} > 0", "x[5] > 0", "x >"):
        with pytest.raises(PromqlError):
            selectors(slip)
