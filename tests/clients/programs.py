"""The programs of docs/client-libraries.md and docs/client-programs.md, as files that run on this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.reference import DOCS

_PAGES: Final = ("client-libraries.md", "client-programs.md")
_BLOCK: Final = re.compile(
    r"^```(?:python|js|go|java|sh)\n(?P<text>(?:#|//) (?P<name>\S+)\n.*?)^```$", re.DOTALL | re.MULTILINE
)
_API: Final = "https://api.example.com"
# What `make test` installs where there is an npm.
NODE_MODULES: Final = Path(sys.prefix) / "callers" / "node_modules"


@dataclass(frozen=True, slots=True)
class Program:
    """One of the programs. `needs` are commands of the machine, or files; `builds` is run once before it.

    `{here}` is the directory that it is written to.
    """

    file: str
    runs: tuple[str, ...]
    needs: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        return [each for each in self.needs if shutil.which(each) is None and not Path(each).exists()]

    def command(self, directory: Path) -> list[str]:
        return [word.format(here=directory) for word in self.runs]


def write_all(directory: Path, port: int) -> None:
    """Put them, and what they import, into this directory, for an API on this port of loopback."""
    for name, text in TEXTS.items():
        (directory / name).write_text(_here(text, port))
    if NODE_MODULES.exists():
        (directory / "node_modules").symlink_to(NODE_MODULES)
    for program in PROGRAMS:
        if program.builds:
            subprocess.run(program.builds, cwd=directory, check=True)


def _texts() -> Mapping[str, str]:
    pages = [(DOCS / page).read_text("utf-8") for page in _PAGES]
    return {found["name"]: found["text"] for page in pages for found in _BLOCK.finditer(page)}


def _here(text: str, port: int) -> str:
    """A pause of 5 ms in place of the first one, and of those that are computed from it."""
    text = text.replace(_API, f"http://127.0.0.1:{port}")
    text = re.sub(r"\b0\.5\b", "0.005", text)
    return text.replace("500 * time.Millisecond", "5 * time.Millisecond").replace("pause = 500;", "pause = 5;")


TEXTS: Final = _texts()

_ALL: Final = (
    Program("charge_httpx.py", (sys.executable, "{here}/charge_httpx.py")),
    Program("charge_requests.py", (sys.executable, "{here}/charge_requests.py")),
    Program("charge_aiohttp.py", (sys.executable, "{here}/charge_aiohttp.py")),
    Program("charge_fetch.mjs", ("node", "{here}/charge_fetch.mjs"), needs=("node",)),
    Program("charge_axios.mjs", ("node", "{here}/charge_axios.mjs"), needs=("node", str(NODE_MODULES / "axios"))),
    Program("charge.sh", ("sh", "{here}/charge.sh"), needs=("curl",)),
    Program("charge.go", ("{here}/charge",), needs=("go",), builds=("go", "build", "charge.go")),
    Program(
        "Charge.java",
        ("java", "-XX:TieredStopAtLevel=1", "-cp", "{here}", "Charge"),
        needs=("java", "javac"),
        builds=("javac", "Charge.java"),
    ),
)
PROGRAMS: Final = tuple(program for program in _ALL if not program.missing())
LEFT_OUT: Final = tuple(program for program in _ALL if program.missing())


def described() -> str:
    """Which of them this machine runs."""
    missing = [f"{each.file} (no {', '.join(Path(name).name for name in each.missing())})" for each in LEFT_OUT]
    return (
        f"programs for callers: {', '.join(each.file for each in PROGRAMS)}; left out: {', '.join(missing) or 'none'}"
    )


def untested() -> set[str]:
    """Programs of the pages that no entry runs: there must be none. What is imported is no program."""
    return {name for name in TEXTS if not name.startswith("once.")} ^ {each.file for each in _ALL}
