"""Everything here runs on uvloop, and with `--full` also on asyncio's own loop, which sees an end differently."""

from __future__ import annotations

from tests.http.upstream.conftest import authority, pytest_asyncio_loop_factories

__all__ = ("authority", "pytest_asyncio_loop_factories")
