"""Defects of regions: where an operation is at home, and what one region believes of another."""

from __future__ import annotations

from tests.defects.defect import read

DEFECTS = read(r"""
home-claimed-elsewhere: a region claims what is at home in another one, so that a key runs in both
  protect/regions.py tests/http/gateway/test_regions.py::test_a_key_runs_once_whichever_region_it_meets
-return None if name == self._here else name
+return None
region-unsigned: a client says whose connection it is, and is believed
  protect/regions.py tests/http/gateway/test_regions.py::test_what_was_signed_is_for_one_request_and_one_region
-if not hmac.compare_digest(signature,
+if False and not hmac.compare_digest(signature,
region-signed-for-ever: a signature counts long after its request
  protect/regions.py tests/http/gateway/test_regions.py::test_what_was_signed_is_for_one_request_and_one_region
-if abs(age_seconds) > _SIGNED_SECONDS:
+if False:
regions-send-back-and-forth: two regions that disagree about a home send a request to one another for ever
  protect/regions.py tests/http/gateway/test_regions.py::test_regions_that_disagree_execute_nothing[another order]
-if hop.region is not None:
+if False:
homes-outside-the-identity: living keys get another home, and run again there
  app/stores.py tests/http/gateway/test_regions.py::test_living_keys_keep_their_homes
-where = [framed(b"regions", *homes)] if homes else []
+where: list[bytes] = []
order-over-regions: an order is promised over keys that are at home in several regions, and kept in each alone
  config/checks.py tests/config/test_mistakes.py::test_no_promise_over_keys_that_have_different_homes[order]
-if route.order:
+if False:
home-away-claimed-here: while an operation's home cannot be reached, the region that got its request claims it
  protect/coordinator.py tests/simulation/test_simulation.py::test_no_invariant_breaks_between_regions
-                    reply = await self._send_home(self.regions, home, request)
+                    reply = await self._send_home(self.regions, home, request)
+                    if reply.verdict is Verdict.STORE_UNAVAILABLE:
+                        reply = await self._reply_to(request, operation_id)
link-cut-taken-for-unsent: a link that is cut after the request left is told as a home that nothing was sent to
  protect/regions.py tests/simulation/test_simulation.py::test_no_invariant_breaks_between_regions
-refuse(Verdict.IN_DOUBT, shape=shape, status=503,
+refuse(Verdict.STORE_UNAVAILABLE, shape=shape,
home-silent-sent-from-here: what the home does not answer is sent to the service from here, as if there were no store
  protect/coordinator.py tests/simulation/test_simulation.py::test_no_invariant_breaks_between_regions
-                    reply = await self._send_home(self.regions, home, request)
+                    reply = await self._send_home(self.regions, home, request)
+                    if reply.source is not Source.SERVICE:
+                        request.body = request.taken
+                        reply = Untouched(request, Verdict.UNPROTECTED)
""")
