"""The next program, built once for all tests that need it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upgrade.programs import build_next


@pytest.fixture(scope="session")
def next_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_next(tmp_path_factory.mktemp("next-program") / "next")
