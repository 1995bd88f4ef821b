"""The loops and the authority of this suite."""

from __future__ import annotations

from tests.http.loops import authority, pytest_asyncio_loop_factories

__all__ = ["authority", "pytest_asyncio_loop_factories"]
