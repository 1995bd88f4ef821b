"""The package as others get it: `make dist` builds it, and the proof installs and runs it, as the Dockerfile does, too.

    python -m tests.packaging [--to DIRECTORY]

Without `--to`, a wheel and an sdist are installed into an empty environment, with the packages of the lock file, and
the demonstration runs from an empty folder; then the build steps of the Dockerfile run against a folder instead of `/`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_SOURCES: Final = ("pyproject.toml", "README.md", "gateway")
# The builder changes the arguments of its process.
_BUILD: Final = "import sys, setuptools.build_meta as b; to = sys.argv[1]; b.build_wheel(to); b.build_sdist(to)"
_PIP: Final = ("-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", "--no-deps")


def build(directory: Path) -> tuple[Path, Path]:
    """A wheel and an sdist of the sources alone: what an earlier build left beside them gets into neither."""
    with tempfile.TemporaryDirectory() as name:
        sources = Path(name)
        for source in _SOURCES:
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copy(ROOT / source, sources / source)
        made = sources / "dist"
        made.mkdir()
        _run(sys.executable, "-c", _BUILD, str(made), cwd=sources)
        directory.mkdir(parents=True, exist_ok=True)
        wheel, sdist = (Path(shutil.copy(next(made.glob(kind)), directory)) for kind in ("*.whl", "*.tar.gz"))
    return wheel, sdist


def prove(place: Path) -> None:
    """Install both and run the demonstration; then the same by the Dockerfile."""
    empty = place / "empty"
    empty.mkdir()
    wheel, sdist = build(place / "dist")
    _run(sys.executable, "-m", "venv", str(place / "venv"), cwd=place)
    python = place / "venv" / "bin" / "python"
    _run(str(python), *_PIP, "--require-hashes", "--requirement", str(ROOT / "requirements.lock"), cwd=place)
    for package in (wheel, sdist):
        _run(str(python), *_PIP, "--force-reinstall", "--no-build-isolation", str(package), cwd=place)
        _demonstrate(python.parent, empty)
        print(f"{package.name}: installed, and the demonstration ran")
    _demonstrate(_run_dockerfile(place / "image") / "opt" / "idempotency-gateway" / "bin", empty)
    print("Dockerfile: built, and the demonstration ran")


def _demonstrate(programs: Path, directory: Path) -> None:
    output = _run(str(programs / "idempotency-gateway"), "demo", "--story", cwd=directory)
    assert "charge" in output
    assert list(directory.iterdir()) == [], "it writes nothing where it is started"


def _run_dockerfile(root: Path) -> Path:
    """The steps of the build stage, with this folder in place of `/`; returns the folder."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text("utf-8"))
    directory = root
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        match word:
            case "FROM" if not rest.endswith(" AS build"):
                break
            case "WORKDIR":
                directory = root / rest.lstrip("/")
                directory.mkdir(parents=True)
            case "COPY":
                *sources, target = rest.split()
                for source in sources:
                    if (ROOT / source).is_dir():
                        shutil.copytree(ROOT / source, directory / target)
                    else:
                        shutil.copy(ROOT / source, directory / target)
            case "RUN":
                command = rest.replace("/opt/", f"{root}/opt/")
                command = re.sub(r"(^|&& )python ", rf"\1{sys.executable} ", command)
                _run("/bin/sh", "-c", command, cwd=directory)
            case "ARG" | "FROM" | "" | "#":
                pass
            case _:
                assert word.startswith("#"), f"a step that is not known here: {line}"
    # The later stages copy the environment and remove nothing of it.
    shutil.rmtree(directory)
    return root


def _run(*command: str, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.packaging", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, help="build the wheel and the sdist there, and nothing else")
    asked = parser.parse_args(arguments)
    if asked.to is not None:
        for path in build(asked.to):
            print(path)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        prove(Path(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
