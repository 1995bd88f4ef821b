"""Defects of one attempt: what is made of its outcome, when it is recorded, and who is told what."""

from __future__ import annotations

from tests.defects.defect import read

DEFECTS = read(r'''
recorded-after-the-answer: the client has its answer before the store has it
  protect/operation.py tests/http/gateway/test_store_faults.py::test_nobody_is_answered_before_the_store_has_it
-        pause, is_late = _PAUSE_SECONDS_MIN, False
+        pause, is_late = _PAUSE_SECONDS_MIN, False
+        operation.publish(replace(conclusion, others=conclusion.reply))
unrecorded-is-told: an outcome that nothing durable took is told as known
  protect/operation.py tests/http/gateway/test_store_faults.py::test_what_nothing_durable_took_is_told_to_nobody
-        except StoreError:
-            return False
+        except StoreError:
+            operation.publish(conclusion)
+            return True
completion-said-once: a completion whose answer was lost is not said again
  protect/operation.py tests/protect/test_coordinator.py::test_a_lost_answer_to_an_outcome
-            except (StoreError, TimeoutError):
-                is_late = True
+            except (StoreError, TimeoutError):
+                is_late = True
+                operation.stage = _SETTLED
+                self._publish_unrecorded(operation, conclusion)
+                return
refused-write-is-told: a holder whose write was refused gives its client its own answer all the same
  protect/operation.py tests/http/gateway/test_store_faults.py::test_a_superseded_holder_tells_what_the_record_says
-        abort_stream(conclusion.reply)
-        conclusion.reply = reply_by_record(
+        return
+        conclusion.reply = reply_by_record(
lost-is-released: a connection that ended before the answer frees the key
  core/outcome.py tests/core/test_outcome.py::test_unknown_is_never_anything_else
  tests/http/gateway/test_outcomes.py::test_no_complete_response[close]
-came."""
-    return Outcome(Event.ABANDON, Verdict.IN_DOUBT)
+came."""
+    return Outcome(Event.RELEASE, Verdict.UPSTREAM_UNREACHABLE)
timeout-is-released: an upstream that did not answer in time frees the key
  protect/compose.py tests/http/gateway/test_outcomes.py::test_silence_is_never_nothing
-    outcome = conclude_unknown()
+    outcome = conclude_unknown()
+    if reason is Unknown.TIMEOUT:
+        outcome = conclude_not_sent(carries_doubt=False)
truncation-is-released: an answer that broke off frees the key
  protect/compose.py tests/http/gateway/test_outcomes.py::test_no_complete_response[body-reset]
-    outcome = conclude_unknown()
+    outcome = conclude_unknown()
+    if head is not None:
+        outcome = conclude_not_sent(carries_doubt=False)
not-sent-is-doubt: a refused connection puts the key in doubt
  protect/operation.py tests/http/gateway/test_outcomes.py::test_nothing_sent
-conclusion = not_sent(request, record, reason, detail)
+conclusion = unknown(request, record, next(iter(Unknown)), detail, 0.0)
  protect/operation.py
-NotSent, SentNothing, TooLong, UpstreamResponse
+NotSent, SentNothing, TooLong, Unknown, UpstreamResponse
door-settles-the-key: 401 is a final answer, so that a stranger uses up the key
  core/outcome.py tests/http/gateway/test_outcomes.py::test_a_stranger_poisons_nothing[sqlite-401]
-    if status in REFUSED_AT_THE_DOOR:
-        return Meaning.RETRYABLE
-
door-keeps-the-fingerprint: after a stranger's 401 the key is for the stranger's request only
  core/outcome.py tests/http/gateway/test_outcomes.py::test_a_stranger_poisons_nothing[sqlite-401]
-return Outcome(Event.FORGET, Verdict.RELEASED)
+return Outcome(Event.RELEASE, Verdict.RELEASED)
any-401-forgets: a 401 of a later attempt frees the owner's key for others
  core/outcome.py tests/http/gateway/test_outcomes.py::test_a_stranger_poisons_nothing[sqlite-the-owner-was-there-first]
-if status in REFUSED_AT_THE_DOOR and is_first_attempt:
+if status in REFUSED_AT_THE_DOOR:
payments-5xx-final: a 5xx of a payment service is recorded as its answer
  core/outcome.py tests/core/test_outcome.py::test_every_status_by_preset[payments]
-        return Meaning.RETRYABLE
-    return Meaning.IN_DOUBT
+        return Meaning.RETRYABLE
+    return Meaning.FINAL
payments-5xx-retryable: a 500 of a payment service frees the key
  core/outcome.py tests/http/gateway/test_outcomes.py::test_complete_response[payments-500-in-doubt]
-if status in (500, 503) and preset is not Preset.PAYMENTS:
+if status in (500, 503):
waiter-claims: whoever waited for a request that was released executes its own
  protect/duplicates.py tests/http/gateway/test_outcomes.py::test_waiters_of_a_failing_request_do_not_run_it[sqlite]
-                request.taken.close()
-                latest = await self._in_a_place(route, self.waiting.wait, operation_id, wait_seconds)
-                if latest is not None:
+                latest = await self._in_a_place(route, self.waiting.wait, operation_id, wait_seconds)
+                if latest is not None and latest.state == "released":
+                    return None
+                if latest is not None:
waiters-share-a-401: what a stranger was told at the door is told to those who waited
  protect/compose.py tests/http/gateway/test_outcomes.py::test_what_is_for_the_first_caller_alone[sqlite-refused]
-outcome.event in (Event.RELEASE, Event.ABANDON):
+outcome.event in (Event.RELEASE, Event.ABANDON, Event.FORGET):
waiters-unbounded: any number of duplicates may wait
  protect/duplicates.py tests/http/gateway/test_verdicts.py::test_waiters_are_bounded
-self.waiters_on[route.name] >= route.in_flight.max_waiters
+False
memory-outlives-its-lease: how an attempt ended is told from memory when others may have gone on without it
  protect/duplicates.py
  tests/protect/test_coordinator.py::test_how_it_ended_while_the_store_was_away[after-its-lease-lost]
-if result is None or not result.is_recorded:
+if result is None:
store-down-forwards: without the durable store requests are forwarded unprotected, on every route
  protect/coordinator.py tests/http/gateway/test_verdicts.py::test_rule_8_store_unavailable[refuse]
-may_forward = request.route.forwards_unprotected and operation.request.route.forwards_unprotected
+may_forward = True
refused-forwards: what the store refuses is forwarded unprotected, on a route that may do without a store
  protect/coordinator.py tests/protect/test_coordinator.py::test_what_a_store_refuses_is_forwarded_nowhere[rejected]
-if may_forward and not admission.is_refused:
+if may_forward:
known-key-is-no-refusal: a key whose answer cannot be read passes for one on a store that is away, and is forwarded
    unprotected
  store/postgres/executor.py
  tests/http/gateway/test_store_faults.py::test_a_known_key_is_not_run_for_want_of_its_answer
-raise Unreadable(f"the key is known, and its record cannot be read: {error}") from error
+raise NotApplied(*error.args) from error
known-key-is-cut-off: a key whose answer is being read when patience ends is forwarded unprotected
  store/postgres/executor.py
  tests/store/test_postgres_faults.py::test_a_known_key_is_not_free_for_want_of_its_answer
-raise asyncio.CancelledError(KNOWN) from cancelled
+raise
no-body-is-an-empty-body: a record whose answer was not kept is replayed as an empty answer
  core/verdict.py tests/http/gateway/test_verdicts.py::test_rule_11_response_not_stored[sqlite]
-if is_fetched or response is None or response.body is None:
+if is_fetched or response is None:
fetch-executes: a header of the caller's makes a write of what is only to be read
  protect/forwarding.py tests/http/test_forwarding.py::test_a_fetch_is_only_a_fetch
-(*DEFINING, b"digest",
+(b"digest",
reference-leaves-its-segment: what a service calls what it made leads to another path
  core/outcome.py tests/core/test_reading.py::test_a_reference_stays_where_it_is_put
-escaped(resource.encode())
+resource.encode()
fetch-at-a-foreign-host: a path of another host is asked for here
  core/outcome.py tests/core/test_reading.py::test_an_address_is_of_the_service
-if not authority or _normal(authority, scheme) not in known:
+if not authority:
drain-forgets: what a shutdown could not finish is left to lapse, with nothing said of it
  protect/operation.py tests/http/gateway/test_outcomes.py::test_what_outlives_the_drain_is_said_to_be_in_doubt
-if operation.final_command is not None
+if False
drain-releases: what a shutdown could not finish is freed
  protect/operation.py tests/http/gateway/test_outcomes.py::test_what_outlives_the_drain_is_said_to_be_in_doubt
-            case Stage.GRANTED:
+            case Stage.GRANTED | Stage.SENT:
books-do-not-balance: replays are told to no observer
  protect/coordinator.py tests/observe/test_whole.py::test_the_books_balance
-reply.verdict is not None and not request.is_reported_there:
+reply.verdict not in (None, Verdict.REPLAYED):
''')
