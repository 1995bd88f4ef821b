"""Clients never get all the descriptors that there are."""

from __future__ import annotations

import subprocess
import sys

import pytest

_LOOK = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from gateway.app.host import client_connections_max
print(client_connections_max({in_flight}, 24), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def _look(soft: int, hard: int, in_flight: int) -> list[str]:
    look = _LOOK.format(soft=soft, hard=hard, in_flight=in_flight)
    return subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()


@pytest.mark.parametrize(("soft", "hard"), [(256, 900), (900, 900)], ids=["below-the-hard-limit", "at-the-hard-limit"])
def test_clients_get_a_third_of_little(soft: int, hard: int) -> None:
    """The process takes all that it may, and leaves the rest for upstream and store."""
    assert _look(soft, hard, 1_000) == ["300", "900"]


def test_clients_get_what_is_left_of_much() -> None:
    """What the operations in flight and the upstreams need at most is left for them."""
    assert _look(256, 9_000, 1_000) == [str(9_000 - 3 * 1_000 - 24 - 1_024), "9000"]
