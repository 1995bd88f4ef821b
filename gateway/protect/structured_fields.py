"""Reads a key in the quoted form. The only module that knows the Structured Fields library.

draft-ietf-httpapi-idempotency-key-header-07 section 2.1 makes the key a String of RFC 9651. Parameters on it have no
meaning there, and no known client sends any. They are refused, not ignored: if a client distinguished two intents by a
parameter, ignoring it would make them one key. A refusal executes nothing and is noticed at the first request.
"""

from __future__ import annotations

import http_sf

from gateway.core.identity.key import KeyFault


def unquote(value: bytes) -> str | KeyFault:
    """The characters of a quoted string. The fault continues a sentence that begins with the header's name."""
    try:
        item = http_sf.parse(value, tltype="item")
    except http_sf.StructuredFieldError as error:
        place = "" if error.position is None else f" at position {min(error.position, len(value)) + 1}"
        return KeyFault(f"is not a well-formed quoted string{place}")
    except (ValueError, ArithmeticError):
        # Dates and numbers out of range, in a parameter.
        return KeyFault("is not a well-formed quoted string")
    text, parameters = item if isinstance(item, tuple) else (item, {})
    if not isinstance(text, str):
        return KeyFault("is not a quoted string")
    if parameters:
        return KeyFault("has parameters, which mean nothing on a key")
    return text
