"""The files in which workers note what was acknowledged: whole or refused, and never another worker's to write."""

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
from gateway.store.memory.epoch import PLACES, WitnessFiles, WitnessNote

NOTE = WitnessNote(UUID(int=1), 5, 900_000, 7, b"0123456789abcdef")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[WitnessFiles]:
    files = WitnessFiles(tmp_path)
    files.open()
    yield files
    files.close()


def test_what_was_noted_is_read(files: WitnessFiles, tmp_path: Path) -> None:
    """By everybody, at once and after the end; a later note of a link takes the place of the one before."""
    other = WitnessFiles(tmp_path)
    assert other.read().notes == ()
    later = replace(NOTE, number=2**63, at_us=-1)
    for place in (0, PLACES - 1):
        files.write(place, NOTE)
    files.write(0, later)
    assert set(other.read().notes) == set(files.read().notes) == {later, NOTE}
    assert other.read().ended == frozenset()
    files.close()
    assert set(other.read().notes) == {later, NOTE}
    assert len(other.read().ended) == 1


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


def flip(path: Path) -> None:
    path.write_bytes(b"\xff" + path.read_bytes()[1:])


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def lead_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


@pytest.mark.parametrize("damage", [shorten, flip, make_directory, lead_nowhere], ids=lambda damage: damage.__name__)
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


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    """A gateway that could note nothing, or not see what others noted, does not start."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StartRefused, match="cannot be written to"):
        WitnessFiles(tmp_path / "file").open()
    with pytest.raises(StartRefused, match="cannot be read"):
        WitnessFiles(tmp_path / "file").read()
    assert WitnessFiles(tmp_path / "missing").read().notes == ()


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
