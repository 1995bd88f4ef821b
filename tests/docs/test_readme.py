"""What the README and the guides say is what the program does: tables, files, commands, names and numbers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import BaseModel

from gateway import config
from gateway.cli import parser
from gateway.config import Accept, Config, Route
from gateway.config.leaf import duration_text, size_text
from gateway.core.identity.canonical import CANONICAL_BYTES_MAX, PAIRS_MAX, QUOTES_MAX, VALUES_MAX
from gateway.core.outbox import EventType
from gateway.core.verdict import Verdict
from gateway.observe.metrics import Metrics
from tests.support.curl import curl, curl_lines
from tests.support.demo import DemoProcess
from tests.support.fleet import gateways
from tests.support.readme import README, filled

ROOT = README.parent
TEXT = README.read_text()
# Recipes have tests of their own.
GUIDES = [ROOT / "docs" / f"{name}.md" for name in ("accept", "inbox", "events")]
ALL = "\n".join([TEXT, *(guide.read_text() for guide in GUIDES)])
PROSE = re.sub(r"```.*?```", "", ALL, flags=re.DOTALL)
ENVIRONMENT = {
    "HOME": "/home/you",
    "DATABASE_PASSWORD": "secret",
    "FINGERPRINT_KEY": "k" * 32,
    "GITHUB_SECRET": "It's a secret to everybody",
    "LEDGER_SECRET": "whsec_" + "0f" * 32,
    "PROBE_TOKEN": "p",
    "SERVICE_TOKEN": "t",
    "STORAGE_KEY": "0f" * 32,
    "STRIPE_SECRET": "whsec_" + "s" * 32,
}


def blocks(language: str, text: str = ALL) -> list[str]:
    """The fenced blocks of a language, in order: those of the README first."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def whole(text: str) -> str:
    """A configuration; one that is shown in part belongs to the one for Postgres and Redis."""
    shown = yaml.safe_load(text)
    return text if "routes" in shown else yaml.safe_dump(yaml.safe_load(blocks("yaml")[1]) | shown)


CONFIGS = [config.parse(whole(text), environ=ENVIRONMENT) for text in blocks("yaml")]
FIRST, SHARED, *_ = CONFIGS
ROUTE: Route = FIRST.routes[0]
ACCEPT = Accept()


def test_the_tables_are_those_of_the_program() -> None:
    """Filled anew from the program's tables, the README stays as it is; `make readme` does it."""
    assert filled(TEXT) == TEXT


def test_it_opens_with_three_sentences_and_two_commands() -> None:
    """What it does stands in three sentences before the picture, and the two commands come before everything else."""
    opening = TEXT.split("\n\n")[1]
    assert len(re.findall(r"\.(?=\s|$)", opening)) == 3
    commands = [line.split("#")[0].strip() for line in blocks("sh")[0].splitlines()]
    assert commands == ["make run", "make test"]


def test_ten_lines_are_enough_to_begin_with() -> None:
    """The first configuration has ten lines at most and needs no secret."""
    assert len(blocks("yaml")[0].splitlines()) <= 10
    config.parse(blocks("yaml")[0], environ={"HOME": "/home/you"})


def test_every_configuration_is_free_of_second_thoughts() -> None:
    """`check` has nothing to remark on the configurations that are shown, but that one is for trying."""
    remarks = [notice.message for shown in CONFIGS for notice in config.notices(shown)]
    assert len(CONFIGS) >= 7
    assert [remark.partition(":")[0] for remark in remarks] == ["for trying"]


async def test_what_runs_on_one_host_starts_as_written(tmp_path: Path) -> None:
    """Each configuration on SQLite starts for an ordinary user; only its ports are other ones."""
    shown = [text for text in blocks("yaml") if "sqlite://" in text and "routes:" in text]
    assert len(shown) >= 4
    homes = [tmp_path / str(number) for number in range(len(shown))]
    configs = [(yaml.safe_load(text), home) for text, home in zip(shown, homes, strict=True)]
    environments = [{**ENVIRONMENT, "HOME": str(home)} for home in homes]
    async with gateways(*configs, environments=environments) as started:
        for gateway in started:
            assert (await gateway.status("/readyz")).status == 200


def test_what_the_routes_of_a_library_need_is_configuration() -> None:
    """What a row of the table of client libraries names can be given to a route, and `check` has no remark on it."""
    table = TEXT.partition("\n## Client libraries\n")[2].partition("\n## ")[0]
    rows = [settings for row in table.splitlines() if (settings := re.findall(r"`(\w+: [^`]+)`", row))]
    assert len(rows) > 5
    for settings in rows:
        shown = yaml.safe_load(blocks("yaml")[0])
        for setting in settings:
            shown["routes"][0].update(yaml.safe_load(setting))
        assert config.notices(config.parse(yaml.safe_dump(shown), environ=ENVIRONMENT)) == ()


def test_every_target_of_make_exists() -> None:
    """Whatever follows `make` in the README is a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"\bmake (\w+)", "\n".join([*blocks("sh"), *re.findall(r"`(make [^`]*)`", PROSE)])))
    assert {"run", "test", "story"} <= named
    assert named <= set(re.findall(r"^(\w+):", makefile, re.MULTILINE))


def test_every_variable_of_make_exists() -> None:
    """The variables that the README gives to make are read by the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    for variable in re.findall(r"`(?:make run )?([A-Z]+)=", PROSE):
        assert f"$({variable})" in makefile


def test_every_command_line_is_understood() -> None:
    """The program's own parser takes every command line of the README."""
    lines = re.findall(r"^\S*idempotency-gateway (.+)$", "\n".join(blocks("sh")), re.MULTILINE)
    lines += re.findall(r"`idempotency-gateway ([^`]*)`", PROSE)
    assert len(lines) >= 3
    for line in lines:
        parser().parse_args(shlex.split(line))


async def test_the_lines_for_curl_do_what_it_says(tmp_path: Path) -> None:
    """Sent to the demonstration in order, they get what the README announces."""
    first, ledger, other = curl_lines("\n".join(blocks("sh", TEXT)))
    with DemoProcess(tmp_path) as demo:
        assert {first, ledger, other} <= set(
            curl_lines(demo.output.replace(f":{demo.port}/", ":8080/").replace(" \\\n    ", " \\\n  "))
        )
        words = [(await curl(first, demo.port)).header("Idempotency-Status") for _ in range(3)]
        assert words == ["stored", "replayed", "replayed"]
        assert (await curl(ledger, demo.port)).json()["count"] == 1
        refused = await curl(other, demo.port)
        assert (refused.status, refused.json()["code"]) == (422, "key-reused")


def test_every_link_leads_to_a_file() -> None:
    """No link leads to a file or a heading that is not there."""
    links = [(file, link) for file in (README, *GUIDES) for link in re.findall(r"\]\(([^)]+)\)", file.read_text())]
    assert len(links) > 8
    for file, link in links:
        path, _, heading = link.partition("#")
        if "://" in link:
            continue
        target = file.parent / path if path else file
        assert target.is_file(), link
        if heading:
            assert heading in _headings(target.read_text()), link


def _headings(text: str) -> set[str]:
    """The headings as links name them."""
    lines = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", line.lower()).replace(" ", "-") for line in lines}


def test_every_dotted_name_is_a_key_of_the_configuration() -> None:
    """What is written like a key of the configuration is one."""
    types = {type_.value for type_ in EventType}
    names = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", PROSE)) - {"gateway.yaml"} - types
    assert len(names) > 5
    for name in names:
        assert _is_key(Config, name) or _is_key(Route, name), name


def _is_key(model: type, name: str) -> bool:
    section, _, rest = name.partition(".")
    field = model.model_fields.get(section)
    if field is None or not rest:
        return field is not None
    # Of a section that may be left out, the section.
    models = [field.annotation, *get_args(field.annotation)]
    return any(_is_key(each, rest) for each in models if isinstance(each, type) and issubclass(each, BaseModel))


async def test_every_metric_is_exposed() -> None:
    """The metrics that the README names are exposed from the start."""
    exposition = await Metrics(routes=["a"], has_fast_tier=True, version="1").render("text/plain")
    named = set(re.findall(r"(?<!schema\s)`(idempotency_[a-z_]+)`", PROSE))
    assert named
    assert named <= set(re.findall(r"^# TYPE (\w+)", exposition.body.decode(), re.MULTILINE))


def test_every_word_is_explained_to_callers() -> None:
    """Each verdict stands in the README."""
    assert [word for word in Verdict if f"`{word}`" not in ALL] == []


def spoken(text: str) -> str:
    """A duration or size as prose writes it: `5 s`, `24 hours`, `1 MiB`."""
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return f"{number} {({'h': 'hours', 'd': 'days'}).get(unit, unit)}"


@pytest.mark.parametrize(
    ("sentence", "value"),
    [
        ("a duplicate of a running request waits for its response ({}", spoken(duration_text(ROUTE.in_flight.wait))),
        ("took longer than `answer_within` ({})", spoken(duration_text(FIRST.upstream.answer_within))),
        ("A response is replayed for {}", spoken(duration_text(ROUTE.retention.replay))),
        ("and a key remembered for {}", spoken(duration_text(ROUTE.retention.remember))),
        ("Responses over {} (`response.max_stored_bytes`)", spoken(size_text(ROUTE.response.max_stored_bytes))),
        ("It is given up after {} (`delivery.deliver_within`)", spoken(duration_text(FIRST.delivery.deliver_within))),
        ("after {} responses without effect (`delivery.max_answers`)", str(FIRST.delivery.max_answers)),
        ("at most {} undelivered requests (`max_pending`)", f"{ACCEPT.max_pending:,}"),
        ("undelivered requests (`max_pending`), {} of one caller", str(ACCEPT.max_pending_per_scope)),
        ("and {} together (`max_pending_bytes`)", spoken(size_text(ACCEPT.max_pending_bytes))),
        ("with bodies up to {}", spoken(size_text(ACCEPT.max_bytes))),
        ("then within the lease, {}.", spoken(duration_text(FIRST.store.lease))),
        ("`shutdown.delay` ({})", spoken(duration_text(FIRST.shutdown.delay))),
        ("`shutdown.drain_timeout` ({})", spoken(duration_text(FIRST.shutdown.drain_timeout))),
        ("The status port (default `{}`)", str(FIRST.status.listen)),
        ("compared by meaning up to {}", spoken(size_text(CANONICAL_BYTES_MAX))),
        ("({} fields of a form)", str(PAIRS_MAX)),
        ("some {} thousand values", str(VALUES_MAX // 1000)),
        ("or {} thousand quotes", str(QUOTES_MAX // 1000)),
    ],
    ids=[
        *("wait", "answer_within", "replay", "remember", "max_stored_bytes"),
        *(
            "deliver_within",
            "max_answers",
            "max_pending",
            "max_pending_per_scope",
            "max_pending_bytes",
            "accept.max_bytes",
        ),
        *("lease", "delay", "drain_timeout"),
        *("status.listen", "canonical bytes", "form fields", "json values", "json quotes"),
    ],
)
def test_the_numbers_are_the_defaults(sentence: str, value: str) -> None:
    """A number in the README is the one in the program."""
    assert sentence.format(value) in " ".join(PROSE.split())
