"""Brings a browser without root: `python -m tests.browser.install DIRECTORY` unpacks Debian's headless Chromium there.

Only what the machine lacks is downloaded, by apt with lists and archives of its own; nothing is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core")


def main() -> None:
    """Download and unpack. Raises `CalledProcessError`."""
    place = Path(sys.argv[1]).resolve()
    for name in ("lists/partial", "archives/partial", "root"):
        (place / name).mkdir(parents=True, exist_ok=True)
    options = [
        f"Dir::State::lists={place}/lists",
        f"Dir::Cache={place}",
        f"Dir::Cache::archives={place}/archives",
        "Debug::NoLocking=1",
        "APT::Sandbox::User=",
    ]
    apt = ["apt-get", "--quiet=2", "--yes", "--no-install-recommends", *(f"--option={each}" for each in options)]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "install", "--download-only", *PACKAGES], check=True)
    for archive in sorted((place / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", archive, place / "root"], check=True)


def executable(place: Path) -> Path:
    """The browser: the unpacked one, or the machine's own where it is installed."""
    unpacked = place / "root/usr/lib/chromium/chromium-headless-shell"
    return unpacked if unpacked.exists() else Path("/usr/lib/chromium/chromium-headless-shell")


def environment(place: Path) -> dict[str, str]:
    """The environment in which the unpacked browser finds its libraries and fonts."""
    root = place / "root"
    lib = root / "usr/lib/x86_64-linux-gnu"
    libraries = ":".join(str(path) for path in (lib, lib / "pulseaudio", root / "lib/x86_64-linux-gnu"))
    return {**os.environ, "LD_LIBRARY_PATH": libraries, "XDG_DATA_DIRS": f"{root}/usr/share:/usr/share"}


if __name__ == "__main__":
    main()
