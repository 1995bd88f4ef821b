"""The cases of two notes and a store: which of them tell of a lost memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from gateway.store.base import StartRefused
from gateway.store.memory.epoch import (
    MISSING_COUNTS_US,
    Amnesia,
    Seen,
    SeenFile,
    WitnessFiles,
    WitnessNote,
    loss,
    memory_digest,
    missing,
)
from gateway.store.operations import Epoch

EPOCH = Epoch("here", 100, 1_000_000, b"")
AMNESIA = Amnesia(former=("former",))

NOTES: dict[str, Seen | None] = {
    "absent": None,
    # Of this memory, and the two notes were compared.
    "met": Seen("here", 100, is_compared=True),
    # Of this memory, which was met when the shared note could not be read.
    "alone": Seen("here", 90),
    # Of a memory that this one is known to have replaced.
    "former": Seen("former", 5_000, former=("here",)),
    # Of this memory, in a later state.
    "ahead": Seen("here", 101, is_compared=True),
    # Of a memory that replaced this one.
    "successor": Seen("later", 7, former=("first", "here")),
    # Of a memory of which this one knows nothing.
    "stranger": Seen("elsewhere", 7, former=("first",)),
}

# Rows: this host's own note. Columns: the shared one, in the order above. "!" is a loss.
TABLE = """
    absent     . . . . ! ! !
    met        . . . . ! ! .
    alone      . . . . ! ! !
    former     . . . . ! ! !
    ahead      ! ! ! ! ! ! !
    successor  ! ! ! ! ! ! !
    stranger   ! ! ! ! ! ! !
"""


def test_two_notes() -> None:
    """The store is believed exactly where neither note holds anything against it that is not explained."""
    signs = {
        own: ["." if loss(NOTES[own], shared, EPOCH, AMNESIA) is None else "!" for shared in NOTES.values()]
        for own in NOTES
    }
    assert signs == {own: row for own, *row in (line.split() for line in TABLE.strip().splitlines())}


LINK = UUID(int=1)
NOTE = WitnessNote(LINK, 5, 900_000, 0, memory_digest("here"))
WITNESSES = [
    ("equal", NOTE, {LINK: 5}, False),
    ("higher", NOTE, {LINK: 6}, False),
    ("lower", NOTE, {LINK: 4}, True),
    ("missing", NOTE, {UUID(int=2): 9}, True),
    ("of another memory", replace(NOTE, memory=memory_digest("there")), {LINK: 4}, False),
    ("from before a known loss", replace(NOTE, beyond=99), {LINK: 4}, False),
    ("since a known loss", replace(NOTE, beyond=100), {LINK: 4}, True),
    ("old and missing", replace(NOTE, at_us=EPOCH.now_us - MISSING_COUNTS_US - 1), {}, False),
    ("old and lower", replace(NOTE, at_us=EPOCH.now_us - MISSING_COUNTS_US - 1), {LINK: 4}, True),
]


@pytest.mark.parametrize(
    ("note", "witnesses", "is_lost"), [each[1:] for each in WITNESSES], ids=[each[0] for each in WITNESSES]
)
def test_a_witness(note: WitnessNote, witnesses: dict[UUID, int], is_lost: bool) -> None:
    """A store that has less than was acknowledged lost it, unless that is known, or the witness was long unused."""
    epoch, known = replace(EPOCH, witnesses=witnesses), 100 if note.beyond else 0
    whole = WitnessNote(UUID(int=2), 9, 1, known, NOTE.memory)
    held = replace(epoch, witnesses={**witnesses, whole.link: 9})
    for notes in ([note], [whole, note]):
        assert (missing(notes, held, known) is not None) == is_lost
        assert (loss(None, None, held, Amnesia(beyond=known), notes) is not None) == is_lost
    assert (loss(Seen("here", 100), None, held, Amnesia(beyond=known), [note]) is not None) == is_lost


def test_workers_share_a_file(tmp_path: Path) -> None:
    """None takes back what another has seen, and a new memory replaces an old one."""
    path = tmp_path / "seen.json"
    one, other = SeenFile(path), SeenFile(path)
    one.write(Seen("here", 9))
    other.write(Seen("here", 5))
    assert one.read() == Seen("here", 9)
    other.write(Seen("there", 2))
    assert one.read() == Seen("there", 2)
    notes = [Seen("there", token) for token in range(3, 203)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(SeenFile(path).write, notes))
    assert one.read() == notes[-1]
    assert [each.name for each in tmp_path.iterdir()] == ["seen.json"]


@pytest.fixture
def files(tmp_path: Path) -> Iterator[WitnessFiles]:
    files = WitnessFiles(tmp_path)
    files.open()
    yield files
    files.close()


def test_a_reader_beside_a_writer(files: WitnessFiles, tmp_path: Path) -> None:
    """Whoever reads while notes are written gets one of them, and in their order."""
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(
            lambda: [files.write(0, replace(NOTE, link=UUID(int=n), number=n)) for n in range(1, 20_000)]
        )
        last = 0
        while not writing.done():
            for note in WitnessFiles(tmp_path).read().notes:
                assert note.link.int == note.number >= last
                last = note.number


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lead_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


@pytest.mark.parametrize("damage", [shorten, lead_nowhere], ids=lambda damage: damage.__name__)
def test_a_file_that_cannot_be_read_is_refused(damage: Callable[[Path], None], tmp_path: Path) -> None:
    """Without it a loss could go unnoticed; the text names the file and what to do."""
    files = WitnessFiles(tmp_path)
    files.open()
    files.write(0, NOTE)
    files.close()
    (path,) = tmp_path.iterdir()
    damage(path)
    with pytest.raises(StartRefused, match=rf"{tmp_path}.*Repair it, or remove it"):
        WitnessFiles(tmp_path).read()


def test_a_disk_that_takes_no_note(files: WitnessFiles, caplog: pytest.LogCaptureFixture) -> None:
    """It is reported once, and stops nobody."""
    descriptor, files._descriptor = files._descriptor, os.open("/dev/full", os.O_RDWR)
    try:
        with caplog.at_level(logging.ERROR):
            for _ in range(3):
                files.write(0, NOTE)
    finally:
        os.close(files._descriptor)
        files._descriptor = descriptor
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    files.write(0, NOTE)
    assert files.read().notes == (NOTE,)
