"""Defects of regions: where an operation is at home, and what one region believes of another."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

_FILE = "protect/regions.py"
_TESTS = "tests/http/gateway/test_regions.py::"
_BETWEEN = "tests/simulation/test_simulation.py::test_no_invariant_breaks_between_regions"
_SENT_HOME = "                return await self._send_home(self.regions, home, request)\n"

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
        (Edit("app/stores.py", 'where = [framed(b"regions", *homes)] if homes else []', "where: list[bytes] = []"),),
        (_TESTS + "test_living_keys_keep_their_homes",),
    ),
    Defect(
        "order-over-regions",
        "an order is promised over keys that are at home in several regions, and kept in each alone",
        (Edit("config/checks.py", "if route.part(Order):", "if False:"),),
        ("tests/config/test_mistakes.py::test_no_promise_over_keys_that_have_different_homes[order]",),
    ),
    Defect(
        "home-away-claimed-here",
        "while an operation's home cannot be reached, the region that got its request claims it",
        (
            Edit(
                "protect/coordinator.py",
                _SENT_HOME,
                "                reply = await self._send_home(self.regions, home, request)\n"
                "                if reply.verdict is not Verdict.STORE_UNAVAILABLE:\n"
                "                    return reply\n"
                "                reply = None\n",
            ),
        ),
        (_BETWEEN,),
    ),
    Defect(
        "link-cut-taken-for-unsent",
        "a link that is cut after the request left is told as a home that nothing was sent to",
        (
            Edit(
                _FILE,
                "refuse(Verdict.IN_DOUBT, shape=shape, status=503,",
                "refuse(Verdict.STORE_UNAVAILABLE, shape=shape,",
            ),
        ),
        (_BETWEEN,),
    ),
    Defect(
        "home-silent-sent-from-here",
        "what the home does not answer is sent to the service from here, as if there were no store",
        (
            Edit(
                "protect/coordinator.py",
                _SENT_HOME,
                "                reply = await self._send_home(self.regions, home, request)\n"
                "                if reply.source is not Source.SERVICE:\n"
                "                    request.body = WholeBody(request.taken)\n"
                "                    reply = Untouched(request, Verdict.UNPROTECTED)\n"
                "                return reply\n",
            ),
        ),
        (_BETWEEN,),
    ),
)
