"""The chart rendered by Helm, and all manifests and the OpenAPI fragment validated: `make test-deploy`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

if __name__ == "__main__":
    # Behind the others: what both have is taken from the environment of the tests.
    sys.path.append(str(Path(sys.prefix) / "deploy"))
    sys.exit(pytest.main([str(ROOT / "tests" / "docs" / "rendered.py"), "-q", *sys.argv[1:]]))
