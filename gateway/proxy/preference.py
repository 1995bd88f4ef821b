"""How long a caller is willing to wait: `Prefer: wait=N` (RFC 7240 section 4.3)."""

from __future__ import annotations

import re
from typing import Final

from gateway.core.message import Headers, field_values

_WAIT: Final = re.compile(rb'[ \t]*wait[ \t]*=[ \t]*"?([0-9]{1,9})"?[ \t]*(?:;.*)?\Z', re.IGNORECASE)


def wait_preference(headers: Headers) -> int | None:
    """The seconds of the first `wait` preference that can be read, or None."""
    for value in field_values(headers, b"prefer"):
        for member in value.split(b","):
            if (found := _WAIT.match(member)) is not None:
                return int(found[1])
    return None


def preference_applied(seconds: int) -> tuple[bytes, bytes]:
    """What tells the caller that its preference decided (RFC 7240 section 3)."""
    return b"Preference-Applied", b"wait=%d" % seconds
