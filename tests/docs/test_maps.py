"""The maps of the program: what is in a package stands in the first lines of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"`([a-z_]+)`")


@pytest.mark.parametrize("package", ["core", "proxy", "proxy/upstream", "store", "upkeep"])
def test_every_module_is_on_the_map(package: str) -> None:
    """Whoever opens a package finds each of its modules named, and no other."""
    directory = ROOT / "gateway" / package
    entrance = ast.parse((directory / "__init__.py").read_text("utf-8"))
    named = set(_NAME.findall(ast.get_docstring(entrance) or ""))
    modules = {path.stem for path in directory.glob("*.py")} | {path.parent.name for path in directory.glob("*/*.py")}
    assert named - {"run_once"} == modules - {"__init__"}
