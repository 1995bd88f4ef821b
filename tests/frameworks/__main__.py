"""`make test-frameworks`: what `behind` judges, on frameworks with a lock file and a directory of their own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main([str(Path(__file__).with_name("behind.py")), "-q", *sys.argv[1:]]))
