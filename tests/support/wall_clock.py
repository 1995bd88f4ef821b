"""A wall clock that is moved under a process while it runs: a gateway's, a Postgres server's, a Redis server's."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_LIBRARY: Final = "libfaketime.so.1"
# What the library shares among a process and its children; one that is killed leaves it behind.
_SHARED: Final = Path("/dev/shm")


class WallClock:
    """The clock of every process that is started `through` it, or in its `environment`."""

    def __init__(self, directory: Path) -> None:
        """`directory` is empty and can be reached by every user that such a process runs as; the caller removes it."""
        self._offset = directory / "offset"
        library = directory / _LIBRARY
        wheel = importlib.util.find_spec("libfaketime")
        assert wheel is not None, "no libfaketime: install requirements-test.lock, which carries it"
        assert wheel.origin is not None
        (found,) = Path(wheel.origin).parent.rglob(_LIBRARY)
        shutil.copyfile(found, library)
        library.chmod(0o755)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.move(0)

    @property
    def through(self) -> tuple[str, ...]:
        """A command that puts what follows it under this clock, whatever its own environment is."""
        program = shutil.which("env")
        assert program is not None, "there is no `env` on the PATH"
        return (program, *[f"{name}={value}" for name, value in self.environment.items()])

    def move(self, seconds: int) -> None:
        """Show the true time and so much more, at once and until it is moved again."""
        new = self._offset.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.chmod(0o644)
        # Never half written: it is read all the time.
        new.replace(self._offset)


@contextmanager
def wall_clock(directory: Path) -> Iterator[WallClock]:
    """One whose files are in `directory`, which is made. At the end the processes under it have ended."""
    directory.mkdir()
    directory.chmod(0o755)
    try:
        yield WallClock(directory)
    finally:
        shutil.rmtree(directory)
        for shared in _SHARED.glob("*faketime_s?m_*"):
            if not Path("/proc", shared.name.rpartition("_")[2]).exists():
                shared.unlink(missing_ok=True)
