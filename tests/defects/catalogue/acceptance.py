"""Defects of acceptance: what is kept, who may see it, and what its callers are told."""

from __future__ import annotations

from tests.defects.defect import read

DEFECTS = read(r"""
kept-in-clear: requests are stored as they came
  core/confidential.py tests/http/gateway/test_accept.py::test_nothing_of_a_kept_request_is_readable_in_the_store
-nonce + self._cipher(key_id, associated[:OWNER_BYTES]).encrypt(nonce, content, associated)
+nonce + content
kept-request-can-be-moved: a kept request opens in the row of another operation
  core/confidential.py tests/protect/test_kept.py::test_what_was_changed_or_moved_is_refused
-return operation_id.bytes + acceptance_id.bytes
+return b""
accepted-without-a-commit: 202 although nobody knows whether the store has the request
  protect/accepting.py tests/http/gateway/test_accept.py::test_a_lost_acknowledgement_is_asked_for_again
-                    is_lost = True
+                    is_lost = True
+                    if isinstance(command, Accept):
+                        from gateway.core.lifecycle import step
+                        return step(None, command, 0, lambda: 1)[0]
lost-acceptance-is-given-up: an acceptance whose acknowledgement was lost is not asked for again
  protect/accepting.py tests/http/gateway/test_accept.py::test_a_lost_acknowledgement_is_asked_for_again
-                    is_lost = True
+                    raise
preconditions-are-kept-for-later: a request is delivered later although it has a meaning only now
  protect/forwarding.py tests/http/gateway/test_accept.py::test_who_is_accepted
-not _ONLY_NOW.isdisjoint(by_name)
+False
backlog-without-bound: however much waits, more is stored
  protect/accepting.py tests/http/gateway/test_accept.py::test_a_full_backlog_takes_nothing_new
-if refusal is None and not await self._pending.has_room(request, policy):
+if False:
old-count-is-new: beyond a thousand that wait on Postgres, more is stored than may be, for as long as a count is used
  protect/accepting.py
  tests/http/gateway/test_accept.py::test_an_old_count_takes_no_more_than_a_new_one[3600.0-max_pending]
-self._added_before(started - self._backlog.age_seconds, (started, added))
+added
backlog-refuses-what-is-kept: a repeat of what was accepted is refused because much waits
  protect/accepting.py tests/http/gateway/test_accept.py::test_a_full_backlog_takes_nothing_new
-return refusal if isinstance(request.judge(snapshot), Claimable) else Seen(snapshot)
+return refusal
requeued-by-every-repeat: each repeat of a dead letter delivers it again
  protect/accepting.py
  tests/http/gateway/test_accept.py::test_a_dead_letter_is_requeued_by_a_repeat_where_the_route_says_so
- or snapshot.now_us < record.delivery.since_us + policy.requeue_after_us:
+:
status-for-everybody: whoever knows an id sees the operation
  protect/resource.py tests/http/gateway/test_status.py::test_nobody_else_sees_it
-isinstance(caller, Caller) and is_in_scope(
+isinstance(caller, Caller) or is_in_scope(
unreadable-is-unknown: while the store is away, nothing was ever accepted
  protect/resource.py tests/http/gateway/test_status.py::test_what_cannot_be_read_is_not_absent
-            return refuse(Verdict.STORE_UNAVAILABLE, shape=self.shape)
+            return self._not_found()
tag-without-the-clock: a status that the clock changed has the tag that it had
  protect/compose.py tests/http/gateway/test_status.py::test_what_did_not_change_is_not_sent_again
--{record.last_event}-{record.state}
+-{record.last_event}
withdrawn-is-released: a caller that waits is told to repeat what was called off
  protect/compose.py tests/http/gateway/test_accept.py::test_a_caller_that_waits_while_it_is_called_off
-case Claimable() if free_verdict is Verdict.RELEASED and snapshot.record and is_withdrawn
+case Claimable() if False and snapshot.record and is_withdrawn
""")
