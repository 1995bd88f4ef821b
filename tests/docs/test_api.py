"""The documentation for callers follows from the tables, and what comes over the wire is what it describes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from gateway.core.verdict import Verdict
from gateway.protect.reply import CASES
from tests.docs.test_guides import CREATED, compare, running, shown_in
from tests.support.api_docs import API, component, generated
from tests.support.house import house, sqlite_store

OPENAPI: dict[str, Any] = yaml.safe_load((API / "openapi.yaml").read_text("utf-8"))
COMPONENTS: dict[str, Any] = OPENAPI["components"]


def test_the_files_are_as_they_are_made() -> None:
    for path, text in generated().items():
        assert path.read_text("utf-8") == text, f"{path.name}: make docs"
    assert {path.stem for path in (API / "problems").iterdir()} == {verdict.value for verdict in CASES}


async def test_a_problem_has_the_form_of_the_schema(tmp_path: Path) -> None:
    """Its members are those of the schema, and the response is described for its code. A key that its schema allows
    passes, and nothing else does."""
    schema, parameter = COMPONENTS["schemas"]["Problem"], COMPONENTS["parameters"]["IdempotencyKey"]
    longest = "~" * parameter["schema"]["maxLength"]
    async with house(sqlite_store(tmp_path), tmp_path) as home:
        for key in ("!", longest, parameter["example"]):
            assert re.fullmatch(parameter["schema"]["pattern"], key)
            assert (await home.send(key)).status == 200
        for key in (None, f"{longest}~", "two words"):
            response = await home.send(key)
            problem = response.json()
            assert response.status == 400
            assert set(schema["required"]) <= set(problem) <= set(schema["properties"])
            described = COMPONENTS["responses"][component(Verdict(problem["code"]))]
            assert response.header("Content-Type") in described["content"]
            assert all(response.header(header) is not None for header in described["headers"])
            assert f"({response.status}, " in described["description"]


async def test_guide(tmp_path: Path) -> None:
    """A payment, and a problem that a page may read and whose type is a URL."""
    async with running("api/README.md", tmp_path) as (gateway, upstream):
        upstream.on("/v1/payments", CREATED)
        for each in shown_in("api/README.md"):
            await compare(each, gateway.port)
        assert len(upstream.requests) == 1
