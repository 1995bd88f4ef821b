"""What a release hands out, in one directory: `make release`, which publishes nothing.

    python -m tests.release --to DIRECTORY [--image REPOSITORY@sha256:...]

A wheel and an sdist; the chart, with the image by its digest if that is given; a list of what is in the image, as
CycloneDX; where all of it comes from, as a predicate of SLSA, which `cosign attest-blob` signs; their digests.
docs/operate/release.md says what to do with them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any, Final

from gateway import __version__
from tests.packaging import build
from tests.support.deploying import CHART

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = ROOT / "requirements.lock"
SUMS: Final = "SHA256SUMS"
# They build the package, and the image has neither.
_BUILDERS: Final = frozenset({"pip", "setuptools"})
_IMAGE: Final = re.compile(r"(?P<repository>[\w.:/-]+)@(?P<digest>sha256:[0-9a-f]{64})")
_PROJECT: Final = "idempotency-gateway"


def release(directory: Path, image: str = "") -> list[Path]:
    # Of the same sources comes the same wheel, to the bit.
    os.environ["SOURCE_DATE_EPOCH"] = _git("log", "-1", "--format=%ct")
    wheel, sdist = build(directory)
    files = [wheel, sdist, _chart(directory, image)]
    bill = directory / f"{_PROJECT}-{__version__}.cdx.json"
    bill.write_text(json.dumps(bill_of_materials(LOCK.read_text("utf-8")), indent=1) + "\n", "utf-8")
    origin = directory / f"{_PROJECT}-{__version__}.slsa.json"
    origin.write_text(
        json.dumps(provenance(_git("rev-parse", "HEAD"), is_clean=not _git("status", "--porcelain")), indent=1) + "\n",
        "utf-8",
    )
    files += [bill, origin]
    sums = directory / SUMS
    sums.write_text("".join(f"{_digest(path)}  {path.name}\n" for path in sorted(files)), "utf-8")
    return [*files, sums]


def bill_of_materials(lock: str) -> dict[str, Any]:
    """The packages of a lock file that get into the image, as a CycloneDX document."""
    locked = re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE)
    found = [(name, version) for name, version in locked if name not in _BUILDERS]
    own = f"pkg:pypi/{_PROJECT}@{__version__}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": own, "name": _PROJECT, "version": __version__, "purl": own}
        },
        "components": [_component(name, version) for name, version in found],
        "dependencies": [{"ref": own, "dependsOn": [_purl(name, version) for name, version in found]}],
    }


def _component(name: str, version: str) -> dict[str, Any]:
    about = {"type": "library", "bom-ref": _purl(name, version), "name": name, "version": version}
    try:
        licence = metadata(name).get("License-Expression")
    except PackageNotFoundError:
        licence = None
    licences = {"licenses": [{"expression": licence}]} if licence else {}
    return {**about, **licences, "purl": _purl(name, version)}


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def provenance(commit: str, *, is_clean: bool) -> dict[str, Any]:
    """From which commit and lock file these files were made, and by what."""
    sources: list[dict[str, Any]] = [
        {"uri": "git:HEAD", "digest": {"gitCommit": commit}, "annotations": {"uncommitted": not is_clean}},
        {"uri": LOCK.name, "digest": {"sha256": _digest(LOCK)}},
    ]
    return {
        "buildDefinition": {
            "buildType": f"https://{_PROJECT}.invalid/make-release/v1",
            "externalParameters": {"target": "release", "version": __version__},
            "resolvedDependencies": sources,
        },
        "runDetails": {"builder": {"id": f"https://{_PROJECT}.invalid/make-release"}},
    }


def _chart(directory: Path, image: str) -> Path:
    import helm_python

    with tempfile.TemporaryDirectory() as name:
        chart = Path(shutil.copytree(CHART, Path(name) / CHART.name))
        if image:
            named = _IMAGE.fullmatch(image)
            if named is None:
                raise SystemExit("--image: expected REPOSITORY@sha256:..., as the push prints it")
            values = chart / "values.yaml"
            before, default = values.read_text("utf-8"), f'repository: {_PROJECT}, tag: "", digest: ""'
            assert before.count(default) == 1
            written = f'repository: {named["repository"]}, tag: "", digest: "{named["digest"]}"'
            values.write_text(before.replace(default, written), "utf-8")
        return Path(helm_python.package(chart, destination=directory))


def _git(*words: str) -> str:
    return subprocess.run(("git", *words), cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, required=True, help="where the files go")
    parser.add_argument("--image", default="", help="the image of the chart, by its digest: REPOSITORY@sha256:...")
    asked = parser.parse_args(arguments)
    asked.to.mkdir(parents=True, exist_ok=True)
    for path in release(asked.to, asked.image):
        print(path)
    return 0


if __name__ == "__main__":
    # Helm as a library is behind the others, as for `make test-deploy`.
    sys.path.append(str(Path(sys.prefix) / "deploy"))
    sys.exit(main(sys.argv[1:]))
