"""What the tests of the runbook share."""

from __future__ import annotations

from pathlib import Path

from tests.admin.shell import CREATED
from tests.support.upstream import Answer

DAY_SECONDS = 86_400
SECONDS_OF_AGE = {"> 300": "> 0"}
DONE = Answer(201, body=b"done")


def response_file(directory: Path) -> Path:
    """What `curl -i` printed of the service's response."""
    file = directory / "response.txt"
    file.write_bytes(CREATED)
    return file
