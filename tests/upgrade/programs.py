"""Two programs of successive levels: this one, and a next one that is built from it.

The next program is a copy of this one with what a release may bring that raises the level: records and outcomes of
another version once the level is raised, copies in Redis of another version, a migration of each store, and a setting.
It is put together as defects are: where the product has changed, building it fails with the text that has moved.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from gateway.store.agreement import JOURNAL_VERSION, PROGRAM_LEVEL, RECORD_VERSION
from gateway.store.postgres.statements import migrations
from gateway.store.redis.store import VERSION as ENTRY_VERSION
from gateway.store.sqlite.connection import SCHEMA_VERSION
from tests.defects.defect import PRODUCT, Defect, Edit, put_in
from tests.support.gateway import GatewayProcess

THIS: Final = Path(__file__).parents[2]
"""The root of this program."""
NEXT_LEVEL: Final = PROGRAM_LEVEL + 1
NEXT_RECORD_VERSION: Final = RECORD_VERSION + 1
NEXT_JOURNAL_VERSION: Final = JOURNAL_VERSION + 1
NEW_KEY: Final = "novelty"
"""A key of the section `store` that only the next program has."""
NEXT_NAME: Final = "99.0.0"

_LEVEL: Final = "store/agreement.py"
_ROWS: Final = "store/relational/rows.py"
_HOT: Final = "store/postgres/statements.py"
_JOURNAL: Final = "store/journal/file.py"
_SQLITE: Final = "store/sqlite/connection.py"
_WRITTEN: Final = f"""

_known = {PROGRAM_LEVEL}


def note(level: int) -> None:
    global _known
    _known = level


def written(version: int) -> int:
    return version if _known >= PROGRAM_LEVEL else version - 1
"""
_OF_STATE: Final = """"version": str(RECORD_VERSION), "state": "'{}'\""""
_SQL_VERSION: Final = (
    f"(SELECT CASE WHEN e.level >= {NEXT_LEVEL} THEN {NEXT_RECORD_VERSION} ELSE {RECORD_VERSION} END FROM epoch AS e)"
)
_NEXT: Final = Defect(
    "next-program",
    "a release that raises the level",
    (
        Edit("__init__.py", '__version__ = "', f'__version__ = "{NEXT_NAME}+'),
        Edit(_LEVEL, f"PROGRAM_LEVEL: Final = {PROGRAM_LEVEL}", f"PROGRAM_LEVEL: Final = {NEXT_LEVEL}"),
        Edit(_LEVEL, f"RECORD_VERSION: Final = {RECORD_VERSION}", f"RECORD_VERSION: Final = {NEXT_RECORD_VERSION}"),
        Edit(_LEVEL, f"JOURNAL_VERSION: Final = {JOURNAL_VERSION}", f"JOURNAL_VERSION: Final = {NEXT_JOURNAL_VERSION}"),
        Edit(_LEVEL, "\n_FINISH: Final", f"{_WRITTEN}\n\n_FINISH: Final"),
        Edit("store/memory/guard.py", "import agree, strays, why", "import agree, note, strays, why"),
        Edit(
            "store/memory/guard.py",
            "        if (refused := why_refused(epoch.level)) is not None:",
            "        note(epoch.level)\n        if (refused := why_refused(epoch.level)) is not None:",
        ),
        Edit(_ROWS, "RECORD_VERSION, RECORD_VERSIONS\n", "RECORD_VERSION, RECORD_VERSIONS, written\n"),
        Edit(_ROWS, "identity.key, RECORD_VERSION),", "identity.key, written(RECORD_VERSION)),"),
        Edit(_HOT, _OF_STATE.format("claimed"), f'"version": "{_SQL_VERSION}", "state": "\'claimed\'"'),
        Edit(_HOT, _OF_STATE.format("completed"), f'"version": "{_SQL_VERSION}", "state": "\'completed\'"'),
        Edit(_JOURNAL, "JOURNAL_VERSION, JOURNAL_VERSIONS\n", "JOURNAL_VERSION, JOURNAL_VERSIONS, written\n"),
        Edit(_JOURNAL, "*(JOURNAL_VERSION, *ids", "*(written(JOURNAL_VERSION), *ids"),
        Edit("store/redis/store.py", f"\nVERSION: Final = {ENTRY_VERSION}", f"\nVERSION: Final = {ENTRY_VERSION + 1}"),
        Edit(_SQLITE, f"SCHEMA_VERSION: Final = {SCHEMA_VERSION}", f"SCHEMA_VERSION: Final = {SCHEMA_VERSION + 1}"),
        Edit(
            "config/models.py",
            '    clear_keys: leaf.Bool = False\n    """Whether keys are',
            f'    {NEW_KEY}: leaf.Bool = False\n    """What is new."""\n'
            '    clear_keys: leaf.Bool = False\n    """Whether keys are',
        ),
    ),
    caught_by=("tests/upgrade/test_upgrade.py",),
)
_ADDED: Final = {
    f"store/postgres/sql/migrations/{migrations('postgres')[-1][0] + 1:04}_novelty.sql": (
        "ALTER TABLE idempotency_gateway.operation ADD COLUMN novelty text;\n"
        "CREATE TABLE idempotency_gateway.novelty (a bigint NOT NULL PRIMARY KEY);\n"
    ),
    f"store/sqlite/sql/schema_{SCHEMA_VERSION + 1:04}.sql": (
        "ALTER TABLE operation ADD COLUMN novelty TEXT;\nCREATE TABLE novelty (a INTEGER PRIMARY KEY);\n"
    ),
    f"store/postgres/sql/tables/{migrations('portable')[-1][0] + 1:04}_novelty.sql": (
        "ALTER TABLE operation ADD COLUMN IF NOT EXISTS novelty TEXT;\n"
        "CREATE TABLE IF NOT EXISTS novelty (a BIGINT NOT NULL PRIMARY KEY);\n"
    ),
}


def build_next(root: Path) -> Path:
    """Make the next program in this directory, which is not there yet, and return the directory."""
    shutil.copytree(THIS / PRODUCT, root / PRODUCT, ignore=shutil.ignore_patterns("__pycache__"))
    put_in(_NEXT, root)
    for path, text in _ADDED.items():
        (root / PRODUCT / path).write_text(text)
    return root


def use(gateway: GatewayProcess, root: Path) -> None:
    """Have this program run at the next start. The next one is configured with what only it knows."""
    gateway.root = root
    config = yaml.safe_load(gateway.config_file.read_text())
    config["store"].pop(NEW_KEY, None)
    if root != THIS:
        config["store"][NEW_KEY] = True
    gateway.config_file.write_text(yaml.safe_dump(config, sort_keys=False))


async def command(root: Path, *arguments: Any) -> tuple[int, str]:
    """Run a command of this program; its exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", PRODUCT, *map(str, arguments),
        cwd=root, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    return process.returncode, said.decode()


async def finish(gateway: GatewayProcess) -> tuple[int, str]:
    """`migrate --finish` of a gateway's program."""
    return await command(gateway.root, "migrate", "--finish", "--config", gateway.config_file)
