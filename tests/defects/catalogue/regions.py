"""Defects of regions: where an operation is at home, and what one region believes of another."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

_FILE = "protect/regions.py"
_TESTS = "tests/http/gateway/test_regions.py::"

DEFECTS = (
    Defect(
        "home-claimed-elsewhere",
        "a region claims what is at home in another one, so that a key runs in both",
        (Edit(_FILE, "return None if name == self._here else self._homes[name]", "return None"),),
        (_TESTS + "test_a_key_runs_once_whichever_region_it_meets",),
    ),
    Defect(
        "region-unsigned",
        "a client says whose connection it is, and is believed",
        (Edit(_FILE, "if not hmac.compare_digest(signature, ", "if False and not hmac.compare_digest(signature, "),),
        (_TESTS + "test_what_was_signed_is_for_one_request_and_one_region",),
    ),
    Defect(
        "region-signed-for-ever",
        "a signature counts long after its request",
        (Edit(_FILE, "if abs(age_seconds) > _SIGNED_SECONDS:", "if False:"),),
        (_TESTS + "test_the_home_believes_whose_connection_it_was",),
    ),
    Defect(
        "regions-send-back-and-forth",
        "two regions that disagree about a home send a request to one another for ever",
        (Edit(_FILE, "if hop.region is not None:", "if False:"),),
        (_TESTS + "test_regions_that_disagree_execute_nothing[another order]",),
    ),
    Defect(
        "homes-outside-the-identity",
        "living keys get another home, and run again there",
        (Edit("app/routes.py", 'where = [framed(b"regions", *homes)] if homes else []', "where: list[bytes] = []"),),
        (_TESTS + "test_living_keys_keep_their_homes",),
    ),
)
