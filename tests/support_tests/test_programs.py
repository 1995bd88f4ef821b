"""Which servers judge the program does not depend on what else is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import programs


def fake(directory: Path, name: str, said: str) -> Path:
    """A program of this name that tells this version."""
    program = directory / name
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)
    return program


def test_what_is_on_the_path_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server on the PATH is found as a further version, and is not what the tests start."""
    for name in ("GATEWAY_TEST_POSTGRES_BIN", "GATEWAY_TEST_REDIS_SERVER", "GATEWAY_TEST_SERVERS"):
        monkeypatch.delenv(name, raising=False)
    before = programs.redis(), programs.postgres()
    redis = fake(tmp_path, "redis-server", "Redis server v=99.1.2 sha=0")
    fake(tmp_path, "postgres", "postgres (PostgreSQL) 99.3")
    fake(tmp_path, "initdb", "")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert (programs.redis(), programs.postgres()) == before
    assert programs.Program(redis, "Redis 99.1.2") in programs.every_redis()
    assert "PostgreSQL 99.3" in [each.version for each in programs.every_postgres()]


def test_a_named_program_is_what_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names another version, the run says which, and a mistake in it is said."""
    valkey = fake(tmp_path, "valkey-server", "Valkey server v=99.0.1 sha=0")
    monkeypatch.setenv("GATEWAY_TEST_REDIS_SERVER", str(valkey))
    assert programs.redis() == programs.Program(valkey, "Valkey 99.0.1")
    assert f"Redis: Valkey 99.0.1 ({valkey})" in programs.described()
    monkeypatch.setenv("GATEWAY_TEST_REDIS_SERVER", str(tmp_path / "none"))
    with pytest.raises(AssertionError, match="GATEWAY_TEST_REDIS_SERVER names no program"):
        programs.redis()


def test_an_old_postgres_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that the gateway refuses is not tested."""
    fake(tmp_path, "postgres", "postgres (PostgreSQL) 13.22")
    fake(tmp_path, "initdb", "")
    monkeypatch.setenv("GATEWAY_TEST_SERVERS", str(tmp_path))
    assert "PostgreSQL 13.22" not in [each.version for each in programs.every_postgres()]
