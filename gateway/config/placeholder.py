"""What stands for secrets where a file is checked without them, as in a continuous integration that has none."""

from __future__ import annotations

import re
from pathlib import Path as FilePath

from gateway.config.report import Path

DIRECTORY = FilePath("/placeholder")
"""Where files are whose path is not known."""

_URLS = {
    ("store", "durable"): "postgresql://placeholder@placeholder/placeholder",
    ("store", "fast"): "redis://placeholder:6379/0",
    ("upstream", "url"): "https://placeholder",
}
_ADDRESSES = (("listen",), ("listen", "address"), ("status", "listen"), ("admin", "listen"))
# As long as the longest that a secret has to be, and no longer than a name may be.
_CHARACTERS = 48


class Placeholders:
    """Gives a value for each reference, and remembers what they were for."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """The variables and files (`file:/path`) that something stands for, in the order of the file."""

    def __call__(self, path: Path, name: str, is_whole: bool) -> str:
        """What stands for `name` at this path: a value of the kind that belongs there where it is all of the value."""
        if name not in self.names:
            self.names.append(name)
        word = "placeholder-" + re.sub("[^A-Za-z0-9]", "-", name)
        if is_whole and path[-2:] in _URLS:
            return _URLS[path[-2:]]  # type: ignore[index]
        if is_whole and path in _ADDRESSES:
            return "127.0.0.1:0"
        if is_whole and (path[-2:-1] == ("tls",) or path == ("state_dir",)):
            return str(DIRECTORY / word)
        return word[:_CHARACTERS].ljust(_CHARACTERS, "-")
