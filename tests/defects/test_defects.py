"""Each deliberate defect of the product is noticed by a test that is named for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from tests.defects.bench import Bench
from tests.defects.catalogue import DEFECTS, SLOW
from tests.defects.defect import Defect, Edit, NotThere, changed, put_in

ROOT = Path(__file__).parents[2]

# By the name alone, so that another defect in the catalogue changes nothing for this one.
SAMPLE = [name for name in DEFECTS if name not in SLOW and crc32(name.encode()) % 100 == 0]
NAMED = sorted({test for defect in DEFECTS.values() for test in defect.caught_by})


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest, server_workspace: Path) -> Iterator[Bench]:
    """Runs, a few at a time, everything that the tests of this module that were chosen are going to ask for."""
    with Bench(server_workspace / "defects") as bench:
        for item in request.session.items:
            if isinstance(item, pytest.Function) and item.function is test_a_defect_is_noticed:
                name = item.callspec.params["name"]
                bench.plan(name, DEFECTS[name], DEFECTS[name].caught_by)
        yield bench


def test_every_test_that_has_to_notice_a_defect_is_there() -> None:
    """A name that no test has would be no proof."""
    options = ["--collect-only", "--full", "-q", "--no-header", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *NAMED]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert collected.returncode == 0, collected.stdout[-2000:] + collected.stderr[-2000:]


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_has_its_place(name: str) -> None:
    """It can be put in, so that the proof finds it where it was."""
    assert changed(DEFECTS[name], ROOT)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_defect_is_noticed(bench: Bench, name: str) -> None:
    """With the defect a test fails, by an assertion of its own and not because nothing could be run."""
    verdict = bench.verdict(name)
    assert verdict.noticed, f"{DEFECTS[name].breaks}, and nobody notices: {verdict.broken}\n{verdict.output}"


def test_a_text_that_has_moved_is_an_error(tmp_path: Path) -> None:
    """A defect that cannot be put in, or not in one place only, says so and changes nothing."""
    file = tmp_path / "gateway" / "core.py"
    file.parent.mkdir()
    file.write_text("one two two")
    for edits in ([("one", "1"), ("three", "3")], [("one", "1"), ("two", "2")]):
        defect = Defect("gone", "nothing", tuple(Edit("core.py", *edit) for edit in edits), ("a test",))
        with pytest.raises(NotThere, match="times instead of once"):
            put_in(defect, tmp_path)
        assert file.read_text() == "one two two"
    with pytest.raises(NotThere, match=r"no nowhere\.py"):
        put_in(Defect("gone", "nothing", (Edit("nowhere.py", "a", "b"),), ("a test",)), tmp_path)


@pytest.mark.parametrize(
    ("edit", "tests"),
    [
        (Edit("core/identity/body.py", "def framed(", "def frames("), ("tests/core/test_identity.py",)),
        (Edit("core/identity/body.py", "range(512)", "range(511)"), ("tests/core/test_verdict.py",)),
        (Edit("core/identity/body.py", "range(512)", "range(511)"), ("tests/core/test_nothing.py::test_it",)),
        (
            Edit(
                "core/verdict.py",
                "    record = snapshot.record\n    if record",
                "    record = snapshot.records\n    if record",
            ),
            ("tests/core/test_verdict.py::test_different_request_in_any_state",),
        ),
    ],
    ids=["import", "harmless", "no-such-test", "exception"],
)
def test_what_is_no_assertion_notices_nothing(bench: Bench, edit: Edit, tests: tuple[str, ...]) -> None:
    """A product that cannot be imported, an exception, or a test that is not there, is no proof of anything."""
    bench.plan("no-proof", Defect("no-proof", "nothing that a test is about", (edit,), tests), tests)
    assert not bench.verdict("no-proof").noticed
