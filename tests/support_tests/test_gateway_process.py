"""A gateway that does not start is reported with its own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.gateway import GatewayProcess


async def test_a_gateway_that_ends_at_once_says_why(tmp_path: Path) -> None:
    """The failure carries the exit status and what the program wrote, and no process stays."""
    gateway = GatewayProcess({"no_such_key": 1}, tmp_path)
    with pytest.raises(AssertionError, match=r"not ready: it ended with [1-9]\d*\n.*\w"):
        await gateway.start()
    assert gateway.output()
    assert f"listen: 127.0.0.1:{gateway.port}\n" in gateway.config_file.read_text()
