"""Each deliberate defect of the product is noticed by a test that is named for it, and the product as it is by none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.defects.bench import Bench
from tests.defects.catalogue import DEFECTS
from tests.defects.defect import Defect, Edit, NotThere, put_in

AS_IT_IS = "as-it-is"
NAMED = sorted({test for defect in DEFECTS.values() for test in defect.caught_by})


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest, server_workspace: Path) -> Iterator[Bench]:
    """Runs, a few at a time, everything that the tests of this module that were chosen are going to ask for."""
    with Bench(server_workspace / "defects") as bench:
        for item in request.session.items:
            if not isinstance(item, pytest.Function):
                continue
            if item.function is test_as_it_is_nothing_is_noticed:
                bench.plan(AS_IT_IS, None, NAMED)
            elif item.function is test_a_defect_is_noticed:
                name = item.callspec.params["name"]
                bench.plan(name, DEFECTS[name], DEFECTS[name].caught_by)
        yield bench


def test_as_it_is_nothing_is_noticed(bench: Bench) -> None:
    """All the tests that have to notice a defect are there, and pass on the product as it is."""
    verdict = bench.verdict(AS_IT_IS)
    assert (verdict.noticed, verdict.broken) == ({}, {}), verdict.output
    assert verdict.passed >= len(NAMED)


@pytest.mark.parametrize("name", DEFECTS)
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
        (Edit("core/framing.py", "def framed(", "def framed(:"), ("tests/core/test_identity.py",)),
        (Edit("core/framing.py", "def framed(", "def frames("), ("tests/core/test_identity.py",)),
        (Edit("core/framing.py", "range(512)", "range(511)"), ("tests/core/test_verdict.py",)),
        (Edit("core/framing.py", "range(512)", "range(511)"), ("tests/core/test_nothing.py::test_it",)),
        (
            Edit(
                "core/verdict.py",
                "    record = snapshot.record\n    if record",
                "    record = snapshot.records\n    if record",
            ),
            ("tests/core/test_verdict.py::test_different_request_in_any_state",),
        ),
    ],
    ids=["syntax", "import", "harmless", "no-such-test", "exception"],
)
def test_what_is_no_assertion_notices_nothing(server_workspace: Path, edit: Edit, tests: tuple[str, ...]) -> None:
    """A product that cannot be imported, an exception, or a test that is not there, is no proof of anything."""
    with Bench(server_workspace / "no-proof") as bench:
        bench.plan("no-proof", Defect("no-proof", "nothing that a test is about", (edit,), tests), tests)
        assert not bench.verdict("no-proof").noticed
