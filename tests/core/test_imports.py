"""The walls between the packages stand: the import contracts of `pyproject.toml` hold, and notice what breaks them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]


def _lint(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_contracts_hold() -> None:
    """No import of the package breaks a contract."""
    done = _lint(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "statement", "broken"),
    [
        ("core/message.py", "import asyncio", "The core has no clock"),
        ("core/message.py", "import pydantic", "The core has no clock"),
        ("core/message.py", "import gateway.store.base", "Every arrow points down"),
        ("core/message.py", "import cryptography", "cryptography is imported by"),
        ("store/base.py", "import gateway.protect", "Every arrow points down"),
        ("store/base.py", "import gateway.config", "Every arrow points down"),
        ("store/base.py", "import asyncpg", "asyncpg is imported where"),
        ("store/base.py", "import redis.asyncio", "redis is imported by a sink alone"),
        ("store/base.py", "import hiredis", "redis is imported by a sink alone"),
        ("store/base.py", "import apsw", "apsw is imported by"),
        ("protect/__init__.py", "import http_sf", "http_sf is imported by"),
        ("protect/__init__.py", "import prometheus_client", "prometheus_client is imported by"),
        ("protect/__init__.py", "import yaml", "YAML and pydantic are for"),
        ("protect/__init__.py", "import gateway.store.wall", "Only the composition root"),
        ("upkeep/__init__.py", "import aiohttp", "aiohttp serves"),
        ("events/relay.py", "import nats", "nats is imported by"),
        ("events/relay.py", "import aiokafka", "aiokafka is imported by"),
        ("wall.py", "import gateway.core", "Every arrow points down"),
    ],
    ids=lambda value: value.replace("import ", "").replace("/__init__", "") if isinstance(value, str) else None,
)
def test_a_forbidden_import_is_noticed(tmp_path: Path, module: str, statement: str, broken: str) -> None:
    """One forbidden line anywhere breaks the contract that forbids it."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "gateway", tmp_path / "gateway", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "gateway" / "store" / "wall.py").touch()
    with (tmp_path / "gateway" / module).open("a") as source:
        source.write(f"\n{statement}\n")
    done = _lint(tmp_path)
    assert done.returncode == 1, done.stdout
    assert any(line.startswith(broken) and " BROKEN" in line for line in done.stdout.splitlines()), done.stdout


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
