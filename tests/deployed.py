"""The chart rendered by Helm, and all manifests and the OpenAPI fragment validated: `make test-deploy`.

The renderer and the schemas weigh some 400 MB, so they have a lock file and a directory of their own, and `make test`
does without them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

if __name__ == "__main__":
    # Behind the others: what both have is taken from the environment of the tests.
    sys.path.append(str(Path(sys.prefix) / "deploy"))
    sys.exit(pytest.main([str(ROOT / "tests" / "docs" / "rendered.py"), "-q", *sys.argv[1:]]))
