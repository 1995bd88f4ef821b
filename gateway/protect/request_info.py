"""What of a request is kept with its operation, so that people find it in the logs of others.

Never the query, a body or a credential: a path is what it takes to recognise a request. All of it is short and
printable, whatever was sent.
"""

from __future__ import annotations

from typing import Final

from gateway.core.message import RequestHead, field_values, trace_id_of
from gateway.core.operation import CUT, RequestInfo

_HOST_CHARS_MAX: Final = 255
_PATH_CHARS_MAX: Final = 512


def request_info(head: RequestHead) -> RequestInfo:
    """The request in short; what is longer than its bound ends in `CUT`."""
    hosts = field_values(head.headers, b"host")
    return RequestInfo(
        head.method.decode("latin-1"),
        _shown(hosts[0], _HOST_CHARS_MAX) if hosts else "",
        _shown(head.target.partition(b"?")[0], _PATH_CHARS_MAX),
        head.text(b"x-request-id"),
        trace_id_of(head.text(b"traceparent")),
    )


def _shown(octets: bytes, chars_max: int) -> str:
    """Visible ASCII as it is, every other octet as `%XX`."""
    text = octets.decode("latin-1")
    if not (text.isascii() and text.isprintable() and " " not in text):
        text = "".join(char if "!" <= char <= "~" else f"%{ord(char):02X}" for char in text[:chars_max])
    return text if len(text) <= chars_max and len(octets) <= chars_max else text[: chars_max - 1] + CUT
