"""Defects of claims, leases and fences: who may execute, until when, and whose word counts."""

from __future__ import annotations

from tests.defects.defect import read

DEFECTS = read(r"""
sent-not-marked: an attempt is marked before its claim, and not when it sends
  protect/operation.py tests/integration/test_processes.py::test_killed_while_it_waits_for_the_upstream[sqlite]
-        self.marks.mark_sent(operation.place)
marks-end-before-their-claims: a gateway that is killed in the last seconds of its drain leaves a doubt about what it
    never sent
  protect/operation.py
  tests/protect/test_drain.py::test_what_was_not_sent_stays_marked_until_its_claim_has_ended[not-ended]
-            if operation.stage is _SETTLED:
-                self.marks.unmark(operation.place)
+            self.marks.unmark(operation.place)
pursued-claims-are-not-marked: a claim that nobody will use comes into doubt when its gateway ends before the store is
    back
  protect/claiming.py tests/protect/test_drain.py::test_in_the_pursuit_of_a_claim
-place = NO_PLACE if is_executed else
+place = NO_PLACE if True else
marks-of-another-boot: the marks of a machine that went down are believed
  store/files.py tests/store/test_attempt_files.py::test_marks_of_another_boot_prove_nothing
- or content[:_BOOT_BYTES].rstrip(b"\0") != self._boot:
+:
older-copy-of-marks: what had not been sent is read from an older copy of the marks, in the same boot
  store/files.py tests/store/test_attempt_files.py::test_an_older_copy_that_is_put_back_proves_nothing
-        return changed_ns <= marked_ns + _NOTED_WITHIN_NS and 0 <= age_ns < _BELIEVED_FOR_NS
+        return 0 <= age_ns < _BELIEVED_FOR_NS
marks-by-the-wall-clock: where the host's clock was set back, the marks of ended workers are not believed
  store/files.py tests/store/test_attempt_files.py::test_a_host_whose_clock_was_set_back_hides_no_mark
-partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
+time.time_ns
leases-of-a-clock-that-was-set-back: the lease of a dead holder lasts for as long as the store's clock was set back
  core/lifecycle.py tests/conformance/test_set_back.py::test_the_key_of_a_dead_holder[sqlite-a day]
-if settled is None or settled.lease_until_us <= now_us + settled.lease_us:
+if settled is None or settled.lease_until_us >= 0:
pauses-of-a-clock-that-was-set-back: what was accepted before the store's clock was set back is delivered by that time
    alone
  core/lifecycle.py tests/conformance/test_set_back.py::test_what_waits_for_its_delivery[sqlite-a day]
- or max(kept.since_us, record.claimed_us) > now_us + STEP_US
limits-outlive-their-steps: an attempt is cut off by the limit of a step that has ended long before
  protect/claiming.py tests/protect/test_limits.py::test_what_comes_after_a_step_is_not_cut_off
-        self.limits.due.pop(self, None)
-
look-up-then-insert: a claim looks whether the key is free, and then writes whatever is there by then
  protect/claiming.py tests/protect/test_claiming.py::test_two_claims_that_cross_on_their_way_have_one_grant
-            admission = await self._apply(identity.operation_id, command, route, until)
+            found = await self.store.read(identity.operation_id)
+            is_free = found.record is None or read_token is not None
+            admission = Seen(found)
+            if is_free:
+                admission = await self._apply(identity.operation_id, command, route, until)
  core/lifecycle.py
-    if record is None:
+    if isinstance(command, Claim) and command.read_token is None:
+        record = None
+    if record is None:
no-fence-on-complete: a completion counts whoever says it
  core/lifecycle.py tests/conformance/test_fences.py::test_a_superseded_holder_changes_nothing[sqlite]
-Row((_S.CLAIMED,), _E.COMPLETE, _S.COMPLETED, _F.HOLDER,
+Row((_S.CLAIMED,), _E.COMPLETE, _S.COMPLETED, _F.OPERATOR,
  core/lifecycle.py
-Row((_S.IN_DOUBT,), _E.COMPLETE, _S.COMPLETED, _F.HOLDER,
+Row((_S.IN_DOUBT,), _E.COMPLETE, _S.COMPLETED, _F.OPERATOR,
token-ignored: a holder is known by its attempt alone
  core/lifecycle.py tests/conformance/test_fences.py::test_both_halves_of_the_fence_count[sqlite-token]
-return record.token == command.token and is_attempt
+return record.attempt_id == command.attempt_id
attempt-id-ignored: a holder is known by its token alone
  core/lifecycle.py tests/conformance/test_fences.py::test_both_halves_of_the_fence_count[sqlite-attempt]
-return record.token == command.token and is_attempt
+return record.token == command.token
takeover-not-fenced: whoever once read that the operation is in doubt may take it over
  core/lifecycle.py
  tests/conformance/test_fences.py::test_what_was_read_of_an_earlier_doubt_does_not_count[sqlite-takeover]
-Row((_S.IN_DOUBT,), _E.TAKEOVER, _S.CLAIMED, _F.READ_TOKEN,
+Row((_S.IN_DOUBT,), _E.TAKEOVER, _S.CLAIMED, _F.OPERATOR,
retry-of-another-request: the store lets a different request claim a released key
  core/lifecycle.py tests/conformance/test_fences.py::test_a_released_key_is_for_the_same_request[sqlite]
-recorded is None or recorded.equals
+True or recorded.equals
retention-as-lease: a claim is exclusive for as long as the key is remembered
  protect/claiming.py tests/protect/test_claiming.py::test_close_gives_pursuits_up
-                self.lease_us,
+                route.retention.remember_us,
lease-never-lapses: a dead holder keeps its key for ever
  core/lifecycle.py tests/core/test_lifecycle.py::test_a_lease_ends_at_its_moment
  tests/protect/test_claiming.py::test_close_gives_pursuits_up
-is not None and due(record) <= now_us:
+is not None and due(record) <= now_us and not record.lease_until_us:
lapsed-means-free: a key whose holder is silent may be claimed by the next
  core/lifecycle.py tests/protect/test_claiming.py::test_close_gives_pursuits_up
-Row((_S.CLAIMED,), _E.LAPSE, _S.IN_DOUBT, _F.CLOCK, "the holder died or was cut off"),
+Row((_S.CLAIMED,), _E.LAPSE, _S.ABSENT, _F.CLOCK, "the holder died or was cut off"),
lost-claim-wedges: a claim that was given up without an answer is nobody's to end
  protect/claiming.py tests/protect/test_claiming.py::test_a_claim_given_up_is_ended
-        self._pursue(operation_id, command, remember_us, is_executed=is_executed)
-
cancelled-claim-wedges: a claim whose caller was cancelled on the way is nobody's to end
  protect/claiming.py tests/protect/test_claiming.py::test_a_cancelled_claim_is_released
-            self._pursue(operation_id, command, remember_us)
-            raise
+            raise
new-attempt-for-each-try: a claim whose answer was lost is said again as another attempt, and refuses itself
  protect/claiming.py tests/protect/test_claiming.py::test_a_lost_answer_is_asked_for_again
-result = await self.store.apply(command)
-                    except Indefinite
+result = await self.store.apply(replace(command, attempt_id=_new_attempt_id()))
+                    except Indefinite
renewal-trusted-from-its-end: what remains of a lease is counted from when the answer came
  protect/claiming.py tests/protect/test_leases.py::test_a_slow_renewal_stretches_no_lease
-self.hold(record, now_us, started, lease)
+self.hold(record, now_us, self.clock(), lease)
claim-trusted-from-its-end: the first lease is counted from when the answer to the claim came
  protect/claiming.py tests/protect/test_claiming.py::test_a_grant_counts_from_before_its_call
-return Granted(record, now_us, started,
+return Granted(record, now_us, self.clock(),
failed-renewal-trusted: not renewed because of an error is taken for still held
  protect/claiming.py tests/protect/test_leases.py::test_an_error_renews_nothing_and_ends_nothing
-        except StoreError:
-            return
+        except StoreError:
+            lease.trusted_until_seconds += self.lease_seconds
+            return
no-renewal: the lease of a slow operation is never renewed
  protect/claiming.py tests/protect/test_leases.py::test_a_slow_operation_keeps_its_lease
-if lease.renew_at_seconds <= now and not lease.is_renewing:
+if False:
stalled-loop-claims: a gateway whose loop was stuck goes on claiming at once
  protect/claiming.py tests/protect/test_leases.py::test_a_stalled_loop_claims_nothing
-self.stalled_from_seconds = now + self.lease_seconds / 3
+self.stalled_from_seconds = float('inf')
lease-not-asked-before-sending: the first byte goes out whether or not the lease is still trusted
  protect/operation.py tests/protect/test_coordinator.py::test_a_lease_that_is_over_before_the_first_byte
-if lease.clock() >= lease.trusted_until_seconds:
+if False:
leases-by-the-wall-clock: what a lease is trusted by jumps with the host's clock
  store/base.py tests/http/gateway/test_times.py::test_a_stores_clock_runs_nothing_again[forward]
-partial(time.clock_gettime, time.CLOCK_BOOTTIME)
+lambda: time.time()
""")
