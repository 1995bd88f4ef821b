"""Clients never get all the descriptors that there are."""

from __future__ import annotations

import subprocess
import sys

import pytest

_LOOK = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from gateway.app.descriptors import client_connections_max
print(client_connections_max(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("soft", "hard"), [(256, 900), (900, 900)], ids=["below-the-hard-limit", "at-the-hard-limit"])
def test_clients_get_a_third_of_what_may_be_had(soft: int, hard: int) -> None:
    """The process takes all that it may, and leaves the rest for upstream and store."""
    look = _LOOK.format(soft=soft, hard=hard)
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["300", "900"]
