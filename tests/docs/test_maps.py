"""The maps of the program: what is in a package stands in the first lines of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted((path.parent for path in (ROOT / "gateway").rglob("__init__.py")), key=str)
_NAME = re.compile(r"`([a-z_]+)`")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package.relative_to(ROOT)))
def test_every_module_is_on_the_map(package: Path) -> None:
    """Whoever opens a package finds each of its modules named, and no other."""
    entrance = ast.parse((package / "__init__.py").read_text("utf-8"))
    named = set(_NAME.findall(ast.get_docstring(entrance) or ""))
    modules = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/*.py")}
    assert named == modules - {"__init__", "__main__"}
