"""The quoted form of a key against the test vectors of the HTTP working group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.core.identity.key import HeaderKey, Key, KeyFault, KeyFormat, unquote

DIRECTORY = Path(__file__).parent.parent / "vectors" / "structured-fields"


def vectors() -> list[Any]:
    return [
        pytest.param(vector, id=f"{path.stem}-{vector['name'].replace(' ', '-')}")
        for path in sorted(DIRECTORY.glob("*.json"))
        for vector in json.loads(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("vector", vectors())
def test_structured_key(vector: dict[str, Any]) -> None:
    """What must fail is refused, and of the rest those strings are keys that obey the grammar of keys."""
    lines = [line.encode("utf-8") for line in vector["raw"]]
    found = HeaderKey(format=KeyFormat.STRUCTURED).find_key({b"idempotency-key": lines})
    if vector.get("must_fail", False) or len(lines) > 1:
        assert isinstance(found, KeyFault)
        return
    text, parameters = vector["expected"]
    is_key = (
        isinstance(text, str) and not parameters and 0 < len(text) <= 255 and all("!" <= one <= "~" for one in text)
    )
    assert isinstance(found, Key if is_key else KeyFault)
    if isinstance(found, Key):
        assert found.text == text


@pytest.mark.parametrize("vector", vectors())
def test_string_value(vector: dict[str, Any]) -> None:
    """A string that is well-formed in one line gives its characters, and no other value is one."""
    assert len(vectors()) == 14 + 256 + 5
    if len(vector["raw"]) > 1:
        vector = {"raw": [", ".join(vector["raw"])], "expected": vector["expected"]}
    found = unquote(vector["raw"][0].encode("utf-8"))
    if "expected" in vector and isinstance(vector["expected"][0], str):
        assert found == vector["expected"][0]
    else:
        assert isinstance(found, KeyFault)
