"""The maps of the program: what is in a package stands in the first lines of it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Container, Iterable, Iterator
from functools import reduce
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted((path.parent for path in (ROOT / "gateway").rglob("__init__.py")), key=str)
_NAME = re.compile(r"`([a-z_]+)`")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package.relative_to(ROOT)))
def test_every_module_is_on_the_map(package: Path) -> None:
    entrance = ast.parse((package / "__init__.py").read_text("utf-8"))
    named = set(_NAME.findall(ast.get_docstring(entrance) or ""))
    modules = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/*.py")}
    assert named == modules - {"__init__", "__main__"}


ROOMS = [package for package in PACKAGES if package.parent.name == "gateway"]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_every_room_says_how_it_is_entered_and_what_it_imports(room: Path) -> None:
    """At its entrance stands a way in that exists, and the rooms that it needs, and no other."""
    entrance = ast.get_docstring(ast.parse((room / "__init__.py").read_text("utf-8"))) or ""
    said = re.fullmatch(r"Entered by (.+?)\. Imports (.+)\.", " ".join(entrance.split("\n\n")[-1].split()))
    trees = [ast.parse(path.read_text("utf-8")) for path in room.rglob("*.py")]
    imports = [node.module or "" for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    found = {module.split(".")[1] for module in imports if module.startswith("gateway.")} - {room.name}
    assert said[2] == (", ".join(sorted(found)) or "no other room")
    for entry in said[1].split(", "):
        *modules, name = entry.split(".")
        modules, names = [part for part in modules if part.islower()], [part for part in modules if not part.islower()]
        module = import_module(".".join(("gateway", room.name, *modules)))
        assert callable(reduce(getattr, [*names, name], module))


def _imported(nodes: Iterable[ast.stmt], modules: Container[str]) -> Iterator[str]:
    """The modules that are imported, at once or later, but for what only a type checker reads."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            for name in node.names:
                inside = f"{node.module}.{name.name}"
                yield inside if inside in modules else node.module or ""
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from _imported((each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)), modules)


def test_no_module_needs_itself() -> None:
    """Through whatever others: there is an order in which all can be read."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "gateway").rglob("*.py")}
    modules = {name.removesuffix(".__init__"): ast.parse(path.read_text("utf-8")) for name, path in paths.items()}
    needs = {name: set(_imported(tree.body, modules)) & modules.keys() for name, tree in modules.items()}
    TopologicalSorter(needs).prepare()


def test_the_core_imports_nothing_third_party_but_functions_of_bytes() -> None:
    """What the core imports is the core, comes with Python, or is a cipher, JSON or a quoted string."""
    graph = grimp.build_graph("gateway", include_external_packages=True, cache_dir=None)
    imported = {
        name
        for module in graph.find_descendants("gateway.core") | {"gateway.core"}
        for name in graph.find_modules_directly_imported_by(module)
    }
    foreign = {name for name in imported if not name.startswith("gateway.core") and name not in sys.stdlib_module_names}
    assert imported
    assert foreign == {"cryptography", "http_sf", "orjson"}
