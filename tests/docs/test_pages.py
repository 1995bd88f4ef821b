"""The pages say what the program does: links, generated parts, configurations, commands, names and numbers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from gateway import config
from gateway.config import Config, Placeholders
from gateway.config.delivery import Accept
from gateway.config.leaf import duration_text, size_text
from gateway.config.route import Route
from gateway.core.identity.body import CANONICAL_BYTES_MAX
from gateway.core.outbox import EventType
from gateway.observe.metrics import Metrics
from gateway.options import parser
from tests.support.fleet import gateways
from tests.support.reference import DOCS, PAGES, PARTS, README, ROOT, anchor, annotated, filled, models_in, parts_of

LINES_MAX = {README: 120, DOCS / "operate" / "runbook.md": 600}
OTHERS = [ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")] + [
    ROOT / "tests" / "README.md",
    ROOT / "client" / "README.md",
    ROOT / "deploy" / "helm" / "idempotency-gateway" / "README.md",
]
TEXTS = {page: page.read_text("utf-8") for page in (*PAGES, *OTHERS)}
ALL = "\n".join(TEXTS[page] for page in PAGES)
PROSE = re.sub(r"^ *```.*?^ *```$", "", ALL, flags=re.DOTALL | re.MULTILINE)
LINKS = [(page, link) for page, text in TEXTS.items() for link in re.findall(r"\]\(([^)\s]+)\)", text)]


def blocks(language: str, text: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
    return [re.sub(f"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_can_be_read(page: Path) -> None:
    """No page is longer than 300 lines, but for reference, and its generated parts are those of the program."""
    text = TEXTS[page]
    if "reference" not in page.parts:
        assert len(text.splitlines()) <= LINES_MAX.get(page, 300)
    assert filled(text) == text, "run make docs"


def test_every_generated_part_stands_somewhere() -> None:
    assert sorted(name for page in PAGES for name in parts_of(TEXTS[page])) == sorted(PARTS)


def test_every_link_leads_somewhere() -> None:
    """To a file that is there and, if it names one, to a heading of it. The index leads to each page, but for those of
    single problems, which responses lead to."""
    assert len(LINKS) > 100
    assert [f"{name_of(page)}: {link}" for page, link in LINKS if "://" not in link and not leads_on(page, link)] == []
    index = DOCS / "README.md"
    linked = {(DOCS / link.partition("#")[0]).resolve() for page, link in LINKS if page == index}
    others = [page for page in PAGES if page not in (README, index) and page.parent.name != "problems"]
    assert [name_of(page) for page in others if page not in linked] == []


def leads_on(page: Path, link: str) -> bool:
    path, _, heading = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not heading or not target.exists():
        return target.exists()
    prose = re.sub(r"^```.*?^```$", "", target.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return heading in map(anchor, re.findall(r"^#+ (.+)$", prose, re.MULTILINE))


FRAME = blocks("yaml", TEXTS[DOCS / "configure" / "stores.md"])[0]
"""What completes a configuration that is shown in part."""
FIRST: Config = config.parse(blocks("yaml", TEXTS[README])[0], environ={"HOME": "/home/you"})
ROUTE: Route = FIRST.routes[0]
ACCEPT = Accept()


def configurations() -> Iterator[Any]:
    """Each configuration that is shown, whole: settings of a route complete the frame's route."""
    for page in PAGES:
        for number, block in enumerate(blocks("yaml", TEXTS[page])):
            written = yaml.safe_load(block)
            if not isinstance(written, dict) or not written.keys() & {*Config.model_fields, *Route.model_fields}:
                continue
            frame = yaml.safe_load(FRAME)
            route = frame["routes"][0]
            of_route = {name: written.pop(name) for name in list(written) if name not in Config.model_fields}
            routes = written.pop("routes", [of_route])
            whole = frame if not {"upstream", "store"} <= written.keys() else {}
            if "secrets" in written:
                written["secrets"] = frame["secrets"] | written["secrets"]
            whole = whole | written | {"routes": [each if "match" in each else route | each for each in routes]}
            yield pytest.param(yaml.safe_dump(whole), id=f"{name_of(page)}-{number}")


@pytest.mark.parametrize("text", list(configurations()))
def test_every_configuration_passes_the_check(text: str) -> None:
    config.parse(text, environ={"HOME": "/home/you"}, stand_in=Placeholders())


def test_ten_lines_are_enough_to_begin_with() -> None:
    """The README's configuration has ten lines, needs no secret, and `check` has nothing to remark on it."""
    assert len(blocks("yaml", TEXTS[README])[0].splitlines()) <= 10
    assert config.notices(FIRST) == ()


async def test_what_runs_on_one_host_starts_as_written(tmp_path: Path) -> None:
    """Each whole configuration on SQLite starts for an ordinary user; only its ports and directories are other ones."""
    shown = [
        text.replace("/var/lib", str(tmp_path))
        for page in PAGES
        for text in blocks("yaml", TEXTS[page])
        if "sqlite://" in text and "routes:" in text
    ]
    homes = [tmp_path / str(number) for number in range(len(shown))]
    secrets = dict.fromkeys(re.findall(r"\$\{(\w+)\}", "\n".join(shown)), "0f" * 32)
    environments = [{**secrets, "HOME": str(home)} for home in homes]
    configs = [(yaml.safe_load(text), home) for text, home in zip(shown, homes, strict=True)]
    for given, _ in configs:
        given.pop("admin", None)
    async with gateways(*configs, environments=environments) as started:
        assert len(started) >= 4
        for gateway in started:
            assert (await gateway.status("/readyz")).status == 200


def test_what_the_routes_of_a_library_need_is_configuration() -> None:
    """What a row of the table of client libraries names can be given to a route, and `check` has no remark on it."""
    rows = [found for row in TEXTS[DOCS / "client-libraries.md"].splitlines() if (found := _row_settings(row))]
    assert len(rows) > 5
    for settings in rows:
        shown = yaml.safe_load(blocks("yaml", TEXTS[README])[0])
        for setting in settings:
            shown["routes"][0].update(yaml.safe_load(setting))
        assert config.notices(config.parse(yaml.safe_dump(shown), environ={"HOME": "/home/you"})) == ()


def _row_settings(row: str) -> list[str]:
    return re.findall(r"`(\w+: [^`]+)`", row) if row.startswith("| ") else []


def test_every_dotted_name_is_a_key_of_the_configuration() -> None:
    names = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", PROSE)) - {each.value for each in EventType}
    known = {
        name for name in names if _is_key(Config, name.partition(".")[0]) or _is_key(Route, name.partition(".")[0])
    }
    assert len(known) > 30
    assert [name for name in known if not _is_key(Config, name) and not _is_key(Route, name)] == []


def _is_key(model: type[BaseModel], name: str) -> bool:
    section, _, rest = name.partition(".")
    field = model.model_fields.get(section)
    if field is None or not rest:
        return field is not None
    return any(_is_key(inner, rest) for _, inner in models_in(annotated(field)))


def command_lines() -> list[str]:
    """What the pages have somebody type after the program's name."""
    typed = "\n".join(
        block for page in TEXTS for block in (*blocks("sh", TEXTS[page]), *blocks("console", TEXTS[page]))
    )
    return [
        *re.findall(r"^(?:\$ )?\S*idempotency-gateway (.+?)(?: &)?$", typed, re.MULTILINE),
        *re.findall(r"`idempotency-gateway ([^`]*)`", re.sub(r"\s+", " ", PROSE)),
    ]


@pytest.mark.parametrize("line", [line for line in dict.fromkeys(command_lines()) if "COMMAND" not in line])
def test_every_command_line_is_understood(line: str) -> None:
    parser().parse_args(shlex.split(line.replace("OPERATION_ID", "6f1c1b0e-5f2a-8a3c-9d1e-2b7f0c4d5e6a")))


def test_every_target_and_variable_of_make_exists() -> None:
    """Whatever follows `make` is a target of the Makefile, and what is given to it a variable."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    everything = "\n".join(TEXTS.values())
    typed = "\n".join(block for text in TEXTS.values() for block in (*blocks("sh", text), *blocks("console", text)))
    named = set(re.findall(r"\bmake ([a-z-]+)", "\n".join([typed, *re.findall(r"`(make [^`]*)`", everything)])))
    assert {"run", "test", "story", "docs"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for variable in re.findall(r"`(?:make run )?([A-Z]+)=", everything):
        assert f"$({variable})" in makefile


async def test_every_metric_that_is_named_is_exposed() -> None:
    body, _ = await Metrics(routes=["a"], has_fast_tier=True, version="1").render("text/plain")
    named = set(re.findall(r"(?<!schema\s)`(idempotency_[a-z_]+)[`{]", PROSE)) - {"idempotency_gateway"}
    assert len(named) > 40
    assert named <= set(re.findall(r"^# TYPE (\w+)", body.decode(), re.MULTILINE))


def test_the_refusals_that_callers_meet_come_first() -> None:
    """Five, each with its page, and with what the table of all of them says of repeating."""
    first, _, rest = TEXTS[DOCS / "for-callers.md"].partition("<!-- generated: problems -->")
    said: dict[tuple[str, str], set[str]] = {}
    for code, status, again in re.findall(r"^\| `([a-z-]+)`[^|]*\| (\d+) \| ([a-z ]+) \|", rest, re.MULTILINE):
        said.setdefault((code, status), set()).add(again)
    row = r"^\| \[`([a-z-]+)`\]\(api/problems/([a-z-]+)\.md\) \| (\d+) \| ([^|]+) \|"
    five = re.findall(row, first, re.MULTILINE)
    assert len(five) == 5
    for code, page, status, again in five:
        assert page == code
        assert said[code, status] == ({"yes", "no"} if again == "as `retryable` says" else {again})


def spoken(text: str) -> str:
    """A duration or size as prose writes it: `5 s`, `24 hours`, `1 MiB`."""
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return f"{number} {({'h': 'hours', 'd': 'days'}).get(unit, unit)}"


@pytest.mark.parametrize(
    ("sentence", "value"),
    [
        ("a duplicate of a running request waits for its response ({}", spoken(duration_text(ROUTE.in_flight.wait))),
        ("A response is replayed for {}", spoken(duration_text(ROUTE.retention.replay))),
        ("and a key remembered for {}", spoken(duration_text(ROUTE.retention.remember))),
        ("Responses over {} (`response.max_stored_bytes`)", spoken(size_text(ROUTE.response.max_stored_bytes))),
        ("It is given up after {} (`delivery.deliver_within`)", spoken(duration_text(FIRST.delivery.deliver_within))),
        ("at most {} undelivered requests (`max_pending`)", f"{ACCEPT.max_pending:,}"),
        ("with bodies up to {}", spoken(size_text(ACCEPT.max_bytes))),
        ("then within the lease, {}, and on a host", spoken(duration_text(FIRST.store.lease))),
        ("compared by meaning up to {}", spoken(size_text(CANONICAL_BYTES_MAX))),
    ],
    ids=lambda value: value[:40],
)
def test_the_numbers_are_the_defaults(sentence: str, value: str) -> None:
    assert sentence.format(value) in " ".join(PROSE.split())
