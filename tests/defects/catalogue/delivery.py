"""Defects of delivery: what is sent, when, how often, and what becomes of what cannot be."""

from __future__ import annotations

from tests.defects.defect import read

DEFECTS = read(r"""
resends-for-others: a service sends the requests of another one again, to its own upstream and with their credentials
  upkeep/duty.py tests/upkeep/test_recovery.py::test_only_the_requests_of_its_service_are_sent_again[another]
-self.resend is not None and is_own and
+self.resend is not None and
resends-counted-with-what-was-unsent: after an outage what comes into doubt is not sent again any more
  core/delivery.py tests/deliver/test_worker.py::test_resend_after_an_outage
-counted = delivery.answers + 1
+counted = record.attempts
resends-uncounted: what is in doubt is sent again without an end
  core/lifecycle.py tests/deliver/test_worker.py::test_resend
-answers=delivery.answers + 1)
+answers=delivery.answers)
resends-after-the-deadline: a request that is in doubt has its effect a day after the last moment that its caller was
    told
  core/delivery.py tests/deliver/test_worker.py::test_no_resend_starts_after_the_deadline
-return None if from_us >= delivery.deliver_until_us else from_us
+return from_us
  core/delivery.py
-from_us is None or now_us >= delivery_of(record).deliver_until_us
+from_us is None
lapse-delivers-again: a delivery whose gateway died goes back to what is due
  core/lifecycle.py tests/deliver/test_worker.py::test_a_gateway_that_dies_during_a_delivery
-return replace(record, state=row.next, doubt=LAPSED_DOUBT, history=history)
+return replace(record, state=row.next if record.delivery is None else State.ACCEPTED)
postponed-under-doubt: an attempt without effect says that the attempts before it had none
  core/outcome.py tests/deliver/test_worker.py::test_resend_that_is_answered
-            if carries_doubt:
-                return Outcome(Event.ABANDON, Verdict.IN_DOUBT)
-            if status
+            if status
  core/lifecycle.py
-"known to have had no effect, to be sent again later", refused_under_doubt=True,
+"known to have had no effect, to be sent again later",
buried-under-doubt: credentials that are refused now make a dead letter of what may have had its effect
  core/outcome.py tests/deliver/test_worker.py::test_resend_that_is_answered
-            if carries_doubt:
-                return Outcome(Event.ABANDON, Verdict.IN_DOUBT)
-            if status
+            if status
  core/outcome.py
-if carries_doubt and status in REFUSED_AT_THE_DOOR:
+if False:
  core/lifecycle.py
-"known to have had no effect, not to be sent again by itself", refused_under_doubt=True,
+"known to have had no effect, not to be sent again by itself",
doubt-is-delivered-again: a service that does not respond gets the request again, as from every job queue
  protect/compose.py tests/deliver/test_worker.py::test_nothing_is_sent_again_in_doubt[no-response]
-            return Abandon(*ids, failure, resource)
+            kept = record.delivery is not None
+            unsure = Abandon(*ids, failure, resource)
+            return _undelivered(request, record, failure, head) if kept else unsure
place-is-kept: a delivery that ended keeps its place
  deliver.py tests/deliver/test_worker.py::test_no_more_than_places
-            self._places.give_back(route, generation, is_sent=is_sent, why=why)
+            _ = is_sent, why
dispatched-before-due: an accepted operation may be claimed before its next attempt is due
  core/lifecycle.py tests/deliver/test_worker.py::test_the_store_says_what_is_due
-(delivery_of(record).is_behind or not is_due(record, now_us))
+delivery_of(record).is_behind
lane-is-passed: an operation is dispatched although another one of its lane goes first
  core/lifecycle.py tests/conformance/test_lanes.py::test_one_after_the_other[memory]
-(delivery_of(record).is_behind or not is_due(record, now_us))
+not is_due(record, now_us)
next-of-lane-is-forgotten: the end of the first operation of a lane leaves the next one behind for ever
  store/relational/executor.py
  tests/conformance/test_lanes.py::test_every_end_of_the_head_lets_the_next_one_go[sqlite]
-        if bool(was_behind) is not is_behind:
+        if is_behind and not was_behind:
outage-counts: attempts under which nothing was sent use up the limit of answers
  core/delivery.py tests/core/test_delivery.py::test_what_was_not_sent_never_counts
  tests/deliver/test_worker.py::test_an_outage_burns_nothing
-return _postpone(record, drawn_us(pause_us, draw), failure, is_answered=False)
+return _postpone(record, drawn_us(pause_us, draw), failure, is_answered=True)
half-open-for-all: an upstream that may be tried again is tried with everything
  core/delivery.py tests/core/test_breaker.py::test_half_open_lets_one_through
-return max(0, 1 - current.running)
+return None
half-open-until-the-response: after an outage one slow request keeps all others of its service waiting
  protect/operation.py tests/deliver/test_worker.py::test_a_slow_request_after_an_outage
-            operation.delivery.on_send()
+            pass
breaker-is-open-for-ever: the breaker of an upstream that a reload took away is shown as open while a request from
    before it lasts
  observe/metrics.py tests/observe/test_metrics.py::test_a_gateway_goes_on_from_the_one_before
-return self._rule in (None, Rule.SUM)
+return True
unsent-is-released: a shutdown before the first byte would drop what its caller was promised: it stays claimed instead
  core/outcome.py tests/deliver/test_worker.py::test_a_drain_before_the_first_byte
-    if record.delivery is not None:
+    if False:
probe-drops-the-request: a probe that finds nothing frees the key, and the accepted request is gone
  protect/probing.py tests/deliver/test_worker.py::test_a_probe_that_finds_nothing
-        if record.delivery is not None:
+        if False:
unreadable-is-sent: what cannot be decrypted is sent all the same, as nothing
  protect/operation.py tests/deliver/test_worker.py::test_a_request_that_cannot_be_opened
-if delivery is not None and delivery.unopenable is not None:
+if False:
paused-is-delivered: what is accepted during a pause is delivered at once
  deliver.py tests/deliver/test_worker.py::test_a_pause
-            or self._may_be_paused(operation)
-
old-pauses-are-believed: what is accepted after a pause that nobody here searched during is delivered at once
  deliver.py tests/deliver/test_worker.py::test_a_pause_while_nothing_has_a_place
-            self._paused = None
-
orphans-hide-their-name: what a route may not deliver any more hides what another one with its operation name may
  deliver.py tests/deliver/test_worker.py::test_orphans_hide_nothing
-self._delivering.only(names), limit
+replace(self._delivering, names=frozenset(), alone=frozenset(r.operation for r in routes)), limit
a-full-search-hides-others: a route that has a place for whatever a search finds, and always more, stops the deliveries
    of other routes
  deliver.py tests/deliver/test_worker.py::test_a_route_with_much_to_do_hides_no_other[many-places]
-others = names - self._behind - self._crowded
+others = names - self._behind
a-caller-counts-by-operation: a caller has a limit of its own only on a route that has the name of its operation
  protect/accepting.py tests/integration/test_orphans.py::test_they_take_no_room_from_another_route[sqlite]
-request.route.name, request.identity.scope
+request.identity.operation, request.identity.scope
what-has-no-place-hides-its-name: what waits for a service that is away hides what another route with its operation name
    may deliver
  deliver.py tests/deliver/test_worker.py::test_what_has_no_place_hides_nothing_of_its_name
-self._delivering.only(names), limit
+self._delivering, limit
routes-of-other-names-are-searched: what a route accepted under an operation name that it gave up is found for the one
    that has the name alone
  store/relational/store.py
  tests/conformance/test_kept_requests.py::test_what_nobody_delivers_hides_nothing[sqlite]
-        if route not in delivering.names
former-names-are-not-searched: what a route accepted under a name that it had before is not found
  store/relational/store.py
  tests/conformance/test_kept_requests.py::test_what_nobody_delivers_hides_nothing[sqlite]
-*(await cursor.together(due_of(former)))]
+*([] for _ in former)]
nothing-is-paused-at-the-start: what is accepted right after a start is delivered in spite of a pause
  deliver.py tests/deliver/test_worker.py::test_a_pause_from_before_the_start
-frozenset[str] | None = None
+frozenset[str] | None = frozenset()
work-announced-to-nobody: a pause takes seconds to reach the gateways that go on delivering
  store/postgres/store.py tests/deliver/test_news.py::test_a_pause_and_its_end
-if operation_id == WORK or operation_id in self._interests:
+if operation_id in self._interests:
pending-bytes-uncounted: a few callers with long requests fill the disk of the store
  protect/accepting.py tests/http/gateway/test_accept.py::test_many_bytes_take_nothing_new
-if bytes_of_route.total + request.taken.length > policy.settings.max_pending_bytes:
+if False:
deliveries-under-another-id: a service that knows events by the sender's id takes a delivery that the gateway signed for
    another event
  core/webhook.py tests/core/test_inbox.py::test_the_gateway_signs_what_nobody_else_can[standard_webhooks]
-event_id=next(iter(signed_ids), event_id)
+event_id=event_id
""")
