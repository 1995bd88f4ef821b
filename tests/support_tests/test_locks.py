"""The lock files are exact, agree with each other, and name no place to download from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ["requirements.lock", "requirements-test.lock", "requirements-redis.lock", "requirements-servers.lock"]


def _pins(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Each package's pinned line, and the hashes of its files."""
    pins = {}
    for block in re.split(r"\n(?=\w)", (ROOT / lock).read_text()):
        line, *rest = [part.strip(" \\") for part in block.splitlines() if not part.startswith("#")] or [""]
        if line:
            pins[re.split("[=<>!]", line)[0]] = (line, frozenset(rest))
    return pins


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_is_exact_and_names_no_place(lock: str) -> None:
    """Every line is one version with its hashes; there is no address, option or path."""
    pins = _pins(lock)
    assert pins
    for line, hashes in pins.values():
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; .+)?", line), line
        assert hashes
        assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", value) for value in hashes), line
    assert "://" not in (ROOT / lock).read_text()


def test_tests_run_with_the_versions_that_users_get() -> None:
    """The lock for tests contains the one for users, hash for hash, perhaps on more versions of Python."""

    def versions(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
        return {name: (line.partition(" ; ")[0], hashes) for name, (line, hashes) in _pins(lock).items()}

    assert versions("requirements.lock").items() <= versions("requirements-test.lock").items()


def test_every_declared_dependency_is_locked() -> None:
    """A dependency that is added to the project is added to the locks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {
        lock: {re.split(r"[\[<>=]", name)[0].lower() for name in names}
        for lock, names in {
            "requirements.lock": project["dependencies"],
            "requirements-test.lock": project["optional-dependencies"]["test"],
        }.items()
    }
    assert {name for lock, names in declared.items() for name in names - _pins(lock).keys()} == set()
