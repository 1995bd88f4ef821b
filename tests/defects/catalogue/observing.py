"""Defects of observing: an observed request that notices it."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

_OBSERVE = "tests/http/gateway/test_observe.py::"

DEFECTS = (
    Defect(
        "observed-is-refused",
        "an ambiguous request on an observed route is refused",
        (
            Edit(
                "http/request.py",
                "    if route is not None and not route.is_observed:\n        ambiguous",
                "    if route is not None:\n        ambiguous",
            ),
        ),
        (_OBSERVE + "test_nobody_notices",),
    ),
    Defect(
        "observed-is-replayed",
        "a request on an observed route is protected, and gets a replay",
        (
            Edit(
                "http/handler.py",
                "            if route is not None and route.is_observed:\n",
                "            if False and route is not None and route.is_observed:\n",
            ),
        ),
        (_OBSERVE + "test_enforcing_starts_with_no_memory",),
    ),
    Defect(
        "share-by-request",
        "each request is enforced or observed by itself, and not by its key",
        (
            Edit(
                "protect/route.py",
                'digest(b"share", operation.encode(), key.digest)',
                '__import__("os").urandom(32)',
            ),
        ),
        (_OBSERVE + "test_a_key_stays_on_its_side",),
    ),
)
