"""`make test-alerts`: promtool judges the alerts and their cases, and what a gateway exports.

    python -m tests.observe.promtool

promtool is taken from the path, or out of Debian's package `prometheus`, which is unpacked and not installed.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from gateway.observe.metrics import Metrics

ROOT: Final = Path(__file__).parents[2]


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        promtool = shutil.which("promtool") or _unpacked(Path(directory))
        body, _ = asyncio.run(Metrics(["charge"], has_fast_tier=True, version="1", sinks=["ledger"]).render(""))
        results = [
            subprocess.run([promtool, *arguments], cwd=ROOT / "deploy", input=text, check=False).returncode
            for arguments, text in (
                (("check", "rules", "alerts.yml"), b""),
                (("test", "rules", "alerts_test.yml"), b""),
                (("check", "metrics"), body),
            )
        ]
    print("promtool finds nothing wrong" if not any(results) else "promtool finds something wrong")
    return 1 if any(results) else 0


def _unpacked(directory: Path) -> str:
    subprocess.run(["apt-get", "download", "--quiet", "prometheus"], cwd=directory, check=True)
    (package,) = directory.glob("prometheus_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, directory], check=True)
    return str(directory / "usr/bin/promtool")


if __name__ == "__main__":
    sys.exit(main())
