"""Defects of doubt: what ends it, who may act on it, and what is written down of that."""

from __future__ import annotations

from tests.defects.defect import read

DEFECTS = read(r"""
takeover-release-ends-doubt: the store lets a takeover that had no effect free the key
  core/lifecycle.py tests/conformance/test_fences.py::test_a_takeover_cannot_free_the_key[sqlite-release]
-if (row.refused_under_doubt and record.carries_doubt) or row
+if row
takeover-outcome-ends-doubt: a takeover that was answered 'no effect' is told and recorded as if it were the first
    attempt
  core/outcome.py tests/core/test_outcome.py::test_event_and_word_of_every_answer
  tests/http/gateway/test_recovery.py::test_doubt_is_joined_over_attempts[503]
-            if carries_doubt:
-                return Outcome(Event.ABANDON, Verdict.IN_DOUBT)
-            if status
+            if status
unsent-takeover-ends-doubt: a takeover that was not sent frees the key
  core/outcome.py tests/http/gateway/test_recovery.py::test_resend_takes_over[sqlite]
-    if carries_doubt:
-        return Outcome(Event.ABANDON, Verdict.IN_DOUBT)
-    return Outcome(Event.RELEASE
+    return Outcome(Event.RELEASE
takeover-carries-no-doubt: a claim by takeover is a claim like any other
  core/lifecycle.py tests/conformance/test_fences.py::test_a_takeover_cannot_free_the_key[sqlite-release]
-carried_us=min(in_doubt_since_us(record), now_us) if isinstance(command, Takeover) else None,
+carried_us=None,
doubt-begins-with-the-takeover: operators are told that a doubt began when its last attempt did
  core/lifecycle.py tests/conformance/test_recovery.py::test_since_when_it_is_in_doubt[sqlite]
-carried_us=min(in_doubt_since_us(record), now_us) if isinstance(command, Takeover) else None,
+carried_us=now_us if isinstance(command, Takeover) else None,
doubt-begins-with-the-end-of-the-lease: an attempt that was reported as not known is in doubt only since its lease would
    have ended
  core/lifecycle.py tests/conformance/test_recovery.py::test_since_when_it_is_in_doubt[sqlite]
-lease_until_us=min(record.lease_until_us, now_us),
doubt-executes-again: a retry of an operation in doubt is executed, whatever the route says of recovery
  protect/claiming.py tests/http/gateway/test_verdicts.py::test_rule_14_in_doubt[sqlite]
-takes_over = False, isinstance(route.recovery, Resend)
+takes_over = False, True
doubt-of-another-gateway-is-an-answer: what a gateway behind this one does not know is taken for a request without an
    effect
  core/outcome.py tests/http/gateway/test_behind_a_gateway.py::test_doubt_of_the_inner_one[answered]
-    if said is not None:
+    if False:
outstanding-is-an-answer: a service's 'a request is outstanding for this key' is kept as the response to the request
  core/outcome.py tests/http/gateway/test_behind_a_gateway.py::test_a_service_that_says_outstanding[draft]
- and is_outstanding(document):
+ and False:
in-progress-is-an-answer: where recovery sends again, the upstream's own 'in progress' is recorded as the answer
  core/outcome.py tests/http/gateway/test_recovery.py::test_doubt_is_joined_over_attempts[409]
-if policy.resends and status in RESEND_IN_PROGRESS:
+if False:
recovered-over-the-owners-journal: an operation is recovered while its owner may still bring the answer from its journal
  core/recovery.py tests/http/gateway/test_times.py::test_lapsed_claim_waits_for_its_owners_journal
-return snapshot.now_us - record.lease_until_us >= grace_us and reachable_us >= grace_us
+return True
disproved-before-settle: a probe that finds nothing frees the key while the request may still arrive
  core/recovery.py tests/core/test_recovery.py::test_never_happened_only_after_settle
-if began_us - record.lease_until_us < policy.settle_us:
+if False:
settled-by-a-clock-set-ahead: a probe believes the store's clock alone that no request can arrive any more
  core/recovery.py tests/core/test_recovery.py::test_never_happened_only_by_a_steady_clock
  tests/http/gateway/test_times.py::test_a_404_frees_no_key_after_a_step_of_the_store_s_clock
-if steady_seconds * MICROSECONDS < policy.settle_us + leased_us:
+if False:
any-answer-disproves: an answer of a probe that no rule explains frees the key
  core/recovery.py tests/core/test_recovery.py::test_what_an_answer_means
-    if is_done == is_never:
+    is_never = not is_done
+    if is_done == is_never:
others-operations-probed: a service asks its own upstream about what only has the name of its route
  protect/probing.py
  tests/http/gateway/test_recovery.py::test_a_service_asks_about_its_own_operations_alone[another-operation]
-if not is_of(record.identity, self.service, route.operation):
+if False:
probe-takes-the-token: a probe takes the operation over, and fences the late answer off
  protect/probing.py tests/http/gateway/test_recovery.py::test_a_late_answer_wins_over_a_probe[sqlite]
-            before = await self.store.read(operation_id)
+            taken = Takeover(operation_id, record.token, uuid4(), self.who, lease_us)
+            await self.store.apply(taken)
+            before = await self.store.read(operation_id)
+            before = replace(before, record=replace(before.record, state=State.IN_DOUBT))
  protect/probing.py
-    State,
+    State,
+    Takeover,
  protect/probing.py
-from dataclasses import KW_ONLY, dataclass, field
+from dataclasses import KW_ONLY, dataclass, field, replace
probers-crowd: everybody who retries probes at the same time
  store/operations.py tests/conformance/test_recovery.py::test_of_many_probers_one_gets_the_lease[sqlite]
-if self.is_held(now_us) or (self.is_put_off(now_us) and not is_urgent):
+if self.is_put_off(now_us) and not is_urgent:
healing-repeats-are-forbidden: callers are told not to repeat what only a repeat ends
  protect/reply.py tests/http/edge/test_problem.py::test_doubt_is_told_by_what_a_repeat_does
  tests/http/gateway/test_advice.py::test_each_verdict_with_each_status[in-doubt 409, resent in vain-problem]
-return DOUBTS[type(recovery)]
+return DOUBTS[Hold]
body-beats-what-is-known: a response that may be of an earlier attempt means what its body says
  core/outcome.py tests/core/test_outcome.py::test_what_the_body_says_comes_after_what_is_known
-    if policy.resends and status in RESEND_IN_PROGRESS:
+    if policy.resends and status in RESEND_IN_PROGRESS and not policy.when:
resource-of-nothing: what a response named as made is kept when it is known that nothing was
  core/lifecycle.py tests/conformance/test_recovery.py::test_what_was_made_is_known_until_nothing_was[sqlite]
-        lease_us=0,
-        resource=None,
+        lease_us=0,
held-doubt-is-promised-a-probe: callers are told to repeat what can neither be asked about nor sent again
  core/recovery.py tests/http/gateway/test_recovery.py::test_a_probe_by_a_key_that_is_not_kept_asks_nobody
-case Probe() if probe_target(recovery, record) is None:
+case Probe() if False:
retries-put-the-background-off: each probe for a request that waits makes the pause of the background longer
  protect/probing.py tests/http/gateway/test_recovery.py::test_retries_keep_no_answer_back
-PROBE_FLOOR_US if is_urgent else pause_us(lease.background_tries)
+pause_us(lease.tries)
retries-hammer-the-service: a service that does not know is asked as often as anybody repeats
  store/operations.py tests/conformance/test_recovery.py::test_nobody_asks_again_at_once[sqlite]
-if self.asked_us <= now_us < self.asked_us + PROBE_FLOOR_US:
+if False:
later-probe-asks-nobody: a probe that was configured after the claim is never sent
  core/recovery.py tests/core/test_recovery.py::test_a_probe_that_came_later_is_that_of_the_claim
  tests/http/gateway/test_recovery.py::test_a_probe_that_is_configured_later_resolves_older_doubts[sqlite]
-    if record.probe is not None:
+    if True:
later-probe-guesses-its-host: a probe is made with half a host, and the 'not found' of another one may free the key
  core/recovery.py tests/protect/test_probing.py::test_a_probe_that_cannot_be_made[host-was-cut]
- or request.host.endswith(CUT):
+:
purge-without-audit: who dropped an answer is not written down
  store/relational/executor.py tests/conformance/test_recovery.py::test_whoever_ends_a_doubt_is_written_down[sqlite]
-(audit := audit_of(command)) is not None:
+(audit := audit_of(command)) is not None and EVENT_OF[type(command)] != 'purge':
doubt-is-purged: an operator can drop a doubt
  core/lifecycle.py tests/core/test_lifecycle.py::test_every_state_can_be_left_but_by_time_alone_never_from_doubt
-Row((_S.COMPLETED,), _E.PURGE,
+Row((_S.COMPLETED, _S.IN_DOUBT), _E.PURGE,
operator-need-not-wait: an operator may say that nothing happened while a request may still arrive, without a word of
    warning
  admin/resolution.py tests/admin/test_operations.py::test_never_happened_is_not_known_early
-if settled_us <= snapshot.now_us:
+if True:
older-state-unnoticed: a store that was put back to an older state is believed
  store/memory/epoch.py tests/store/test_guard.py::test_a_lost_memory_is_noticed
-if epoch.token < seen.token:
+if False:
promotion-unnoticed: a standby that was promoted is believed to know all that was acknowledged
  store/memory/epoch.py tests/store/test_guard.py::test_a_lost_memory_is_noticed
-return _REPLACED if epoch.identity in seen.former else _ANOTHER
+return None
lower-witness-believed: a copy that was put back is believed as long as it knows the gateway, however much it lacks
  store/memory/epoch.py tests/store/test_epoch.py::test_a_witness[lower]
-if held is None or held < note.number:
+if held is None:
witness-of-a-repeat-unraised: a claim whose answer was lost is granted again without a note: a loss of it goes unnoticed
  store/postgres/executor.py
  tests/conformance/test_witness.py::test_a_command_that_took_effect_before_is_noted[postgres]
-                await self._link.touch()
+                pass
notes-uncompared-on-a-new-connection: a Postgres that is replaced by an older copy under a running gateway grants what
    it has forgotten
  store/postgres/dialer.py tests/conformance/test_witness.py::test_a_store_that_lacks_what_it_acknowledged[postgres]
-if (why := missing(reading.notes, found, beyond)) is not None:
+if (why := None) is not None:
grant-of-an-uncompared-memory: a claim that was under way while another memory was found is believed to be granted by
    the known one
  store/memory/guard.py tests/store/test_guard.py::test_a_grant_from_while_another_memory_was_found
-isinstance(command, _GRANTING) and trust != self._trust:
+False:
claim-of-an-uncompared-memory: a claim from while another memory was found is believed when it is said again
  store/memory/epoch.py tests/store/test_guard.py::test_a_grant_from_while_another_memory_was_found
-(record.state in UNEXECUTED or record.attempt_id == attempt_id)
+record.state in UNEXECUTED
shared-note-ignored: what other gateways saw of the store, as Redis has it, is not looked at: a fresh host believes any
    store
  store/memory/guard.py tests/store/test_guard.py::test_a_host_without_a_note_knows_what_the_others_saw
  tests/integration/test_lost_memory.py::test_a_copy_where_nothing_but_the_note_in_redis_is_left[sqlite-stopped]
-return self._uncompared, True
+return None, True
shared-note-goes-back: a gateway that saw less takes away what another noted of the store
  store/redis/lua/seen.lua tests/store/test_redis_seen.py::test_neither_token_nor_number_goes_back
-if held ~= identity or is_higher(token, held_token) then
+if true then
shared-note-written-over-unread: a gateway that could not read what was noted of another memory replaces it
  store/redis/lua/seen.lua tests/store/test_redis_seen.py::test_another_memory_yields_only_to_who_judged_it
- and held ~= compared then
+ and false then
shared-number-goes-back: a late write takes away the number of a link that was noted in Redis after it
  store/redis/lua/seen.lua tests/store/test_redis_seen.py::test_neither_token_nor_number_goes_back
-local is_later = known and number_of(noted) > number_of(known)
+local is_later = known
shared-links-dropped-unread: who has not compared the note in Redis drops what in it may tell of a loss
  store/redis/lua/seen.lua
  tests/store/test_redis_seen.py::test_what_a_later_link_stands_for_is_dropped_by_who_compared_it
-local is_compared = not held or held == compared
+local is_compared = true
shared-acknowledgements-ignored: what the store acknowledged to gateways, as Redis has it, is not compared: a slightly
    older copy is believed
  store/memory/epoch.py
  tests/integration/test_lost_memory.py::test_a_copy_where_nothing_but_the_note_in_redis_is_left[postgres-stopped]
-() if shared is None else shared.acknowledged
+()
acknowledgements-shared-late: what the store acknowledges is shared with the other notes alone, every 15 seconds
  store/memory/guard.py tests/store/test_guard.py::test_what_is_acknowledged_is_shared_at_once
-else since_seconds
-        self._is_unshared.set()
+else since_seconds
last-acknowledgements-unshared: a gateway that stops in order does not share what was acknowledged last
  store/memory/guard.py tests/store/test_guard.py::test_what_is_acknowledged_is_shared_at_once
-                    await self._share(self._shared_note)
+                    pass
lost-is-absent: a key that was in the lost memory is taken for one that was never used
  store/memory/epoch.py tests/store/test_guard.py::test_a_lost_memory_is_noticed
-        if now_us >= self.until_us:
+        if True:
forgotten-key-reads-as-free: who waits for what a lost memory has forgotten is told that it had no effect
  store/memory/guard.py tests/store/test_guard.py::test_a_release_from_before_the_loss_is_not_believed
-        if self.is_amnesic:
-            await self._check_known(snapshot)
-
old-release-is-believed: a release from before the loss frees the key although a later retry may be forgotten
  store/memory/epoch.py tests/store/test_guard.py::test_a_release_from_before_the_loss_is_not_believed
-(record.state in UNEXECUTED or record.attempt_id == attempt_id)
+record.attempt_id == attempt_id
requeued-again-by-a-repeat: a requeue that is given again, because its answer was lost, delivers what was given up once
    more
  admin/operations.py tests/admin/test_operations.py::test_a_requeue_that_did_not_help
  tests/admin/test_operations.py::test_many_twice
-before is not None and token in (None, before.token)
+False
kept-request-lost-with-its-doubt: resolved as never happened, an accepted request is dropped, although its caller was
    promised that it is kept
  admin/resolution.py tests/admin/test_commands.py::test_doubt_that_came_to_nothing
-case NothingHappened(drops) if record.delivery is not None and not drops:
+case NothingHappened(drops) if record.delivery is not None and drops:
bulk-requeue-without-a-rate: dead letters are requeued as fast as the store takes them
  admin/listing.py tests/admin/test_operations.py::test_many_at_a_rate
-due = max(due, now) + 1 / self.rate
+due = now
old-acceptance-is-delivered: a request that was accepted before the loss is delivered although a delivery may be
    forgotten
  store/operations.py tests/store/test_guard.py::test_a_request_kept_before_the_loss_is_not_delivered
-(State.RELEASED, State.ACCEPTED, State.DEAD_LETTER)
+(State.RELEASED,)
forgotten-key-is-accepted: a request whose key may have been used before the loss is accepted, and delivered
  store/memory/guard.py tests/store/test_guard.py::test_a_request_kept_before_the_loss_is_not_delivered
-(Claim, Accept, Dispatch, Withdraw)
+(Claim, Dispatch, Withdraw)
history-without-what-had-no-effect: the next attempt hides that, and why, the one before it had no effect
  core/lifecycle.py tests/conformance/test_history.py::test_how_an_attempt_ended[sqlite]
-(Accept, Release, Forget, Abandon,
+(Accept, Forget, Abandon,
history-of-probes-alone: an operation that is probed for long is no more known to have been attempted
  core/operation.py tests/conformance/test_history.py::test_probes_leave_room_for_attempts[sqlite]
-del entries[next(probes, HISTORY_FIRST)]
+del entries[HISTORY_FIRST]
history-lost-with-a-late-answer: an answer that came after the lease hides that the operation was in doubt
  store/sqlite/store.py tests/conformance/test_history.py::test_a_late_answer[sqlite]
-if granted.lease_until_us <= now_us:
+if False:
  store/relational/sql/operations.sql
-state = 'claimed' AND lease_until_us > ?
+? > 0
""")
