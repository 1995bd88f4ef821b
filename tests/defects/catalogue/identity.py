"""Defects of identity and sameness: whose operation it is, and whether it is the same request."""

from __future__ import annotations

from tests.defects.defect import read

DEFECTS = read(r"""
scope-left-out: callers share their keys
  core/identity/key.py tests/core/test_identity.py::test_operation_ids_differ
  tests/http/gateway/test_verdicts.py::test_scopes_never_meet[sqlite]
-derivation_of(service, operation) + framed(scope_digest)
+derivation_of(service, operation)
service-left-out: services on one store share their keys
  core/identity/key.py tests/core/test_identity.py::test_operation_ids_differ
-framed(b"operation", service.encode(), operation.encode())
+framed(b"operation", operation.encode())
operation-left-out: a key on another operation is the same operation
  core/identity/key.py tests/core/test_identity.py::test_operation_ids_differ
-framed(b"operation", service.encode(), operation.encode())
+framed(b"operation", service.encode())
incomparable-means-different: a caller whose request cannot be compared is told to send it under a new key, and pays
    twice
  protect/compose.py tests/http/gateway/test_identity_change.py::test_a_fingerprint_key_that_is_lost[sqlite-another]
-case=None if why is None else "incomparable",
+case=None,
identity-key-left-out: the digests of callers and keys can be computed without the secret
  core/identity/key.py tests/core/test_identity.py::test_with_a_secret_the_digests_cannot_be_computed
  tests/http/gateway/test_identity_change.py::test_guesses_cannot_be_tested
-return of.digest if secret is None else
+return of.digest if True else
identity-key-changes-unseen: a start with another identity key forgets every key
  core/identity/key.py tests/http/gateway/test_identity_change.py::test_another_identity_key[sqlite]
-return recipe if secret is None else
+return recipe if True else
status-of-a-plain-scope: callers are not shown their own operations where there is an identity key
  protect/resource.py tests/http/gateway/test_status.py::test_other_methods
-stored_digest(caller.scope, secret)
+caller.scope.digest
parts-run-together: a byte can move from one part of a digest into the next
  core/identity/body.py tests/core/test_identity.py::test_boundaries_count
-        pieces.append(_LENGTHS[length] if
+        _ = (_LENGTHS[length] if
scope-kept-in-clear: what a scope was made from can be read in the store
  core/identity/key.py tests/core/test_identity_scope.py::test_nothing_in_clear
-Scope(sha256(_BEFORE + len(found).to_bytes(8, "big") + found).digest())
+Scope(found)
any-hop-is-trusted: whoever connects may say which caller it is
  core/identity/key.py tests/core/test_identity_scope.py::test_trusted_hop
-self.trusted is not None and not
+self.trusted is None and not
expiring-token-as-scope: a caller with a fresh token is another caller
  core/identity/key.py tests/core/test_identity_scope.py::test_expiring_token
-if _is_json_web_token(value):
+if False:
token-for-others: a token that was made for another API names a caller here
  core/identity/caller.py tests/http/gateway/test_tokens.py::test_what_is_no_token_of_ours_gets_nothing
-if not _is_for(issuer.audience, payload.get("aud")):
+if False:
token-without-end: a token that has expired names a caller
  core/identity/caller.py tests/http/gateway/test_tokens.py::test_what_is_no_token_of_ours_gets_nothing
-if now_seconds >= until:
+if False:
token-number-is-text: the subject 42 gets the responses of the subject "42"
  core/identity/caller.py tests/http/gateway/test_tokens.py::test_callers_are_told_apart
-framed(name.encode(), kind, text.encode())
+framed(name.encode(), text.encode())
token-remembered-for-good: a verified token counts after its end
  callers.py tests/http/gateway/test_tokens.py::test_a_refreshed_token_is_the_same_caller
-if is_current and self._wall_seconds() < known.until_seconds:
+if is_current:
token-of-a-withdrawn-key: a token that was verified counts although its key was withdrawn
  callers.py tests/http/gateway/test_tokens.py::test_a_key_that_was_withdrawn
-known.version == known.keys.version and known.keys.is_known
+True
algorithm-chosen-by-the-token: a token chooses what its key verifies
  callers.py tests/callers/test_key_set.py::test_an_algorithm_is_bound_to_a_key
-if token.algorithm not in self.algorithms:
+if False:
issuer-asked-for-each-token: whoever sends tokens of unknown keys makes the gateway ask the issuer as often
  callers.py tests/callers/test_key_set.py::test_one_fetch_for_all
-self._clock() >= self._may_fetch_from)
+True)
second-field-line-wins: of two lines of the key's field the last one is the key
  core/identity/key.py tests/core/test_identity_key.py::test_given_twice
-if len(values) != 1:
+if not values:
  core/identity/key.py
-value = values[0].strip(b" \t")
-    if len(value) > _HEADER_BYTES_MAX:
+value = values[-1].strip(b" \t")
+    if len(value) > _HEADER_BYTES_MAX:
repeated-fields-pass: a field that says who calls, or under which key, may be there twice
  protect/ambiguity.py tests/http/edge/test_strictness.py::test_an_ambiguous_field_is_a_fault
-if len(values) > 1 and (name in _SINGLE or name in once):
+if False:
dot-segments-pass: a service that resolves dot segments is reached past its route
  core/routing.py tests/http/gateway/test_spellings.py::test_a_spelling_is_no_way_around_a_route[nginx]
-if _DOT_SEGMENT.search(each)
+if False
formats-pass: a service that takes a format from the path is reached past its route
  core/routing.py tests/http/gateway/test_spellings.py::test_a_spelling_is_no_way_around_a_route[Rails, Grape]
-tail, is_literal = rb"(?:\.[^/]*)?"
+tail, is_literal = b""
another-route-takes-a-spelling: a route with a variable takes what may be read as the path of one before it
  protect/ambiguity.py tests/http/gateway/test_spellings.py::test_a_variable_takes_nothing_from_a_route_before_it
-if routes.is_clear(entry, target) and not names_another(head):
+if True:
unprotected-in-any-spelling: what the file calls unprotected passes in spellings that may be read as a route
  core/routing.py tests/http/gateway/test_spellings.py::test_spellings_that_the_file_lists
-if not self._has_unprotected or not is_plain(target):
+if not self._has_unprotected:
long-path-in-one-piece: the path of a head that comes in one piece is not measured
  protect/ambiguity.py tests/http/gateway/test_hostile.py::test_what_is_too_big_is_refused_as_that
-if len(target) > PATH_BYTES_MAX and
+if False and
dot-segments-forwarded: a protected target with dot segments is forwarded
  protect/ambiguity.py tests/http/edge/test_strictness.py::test_an_ambiguous_target_is_a_fault
-if has_dot_segments(normalise_path(path)) or any(map(has_dot_segments, paths)):
+if False:
float-swallows-digits: two sums of money that a float cannot tell apart are one request
  core/identity/body.py tests/core/test_fingerprint_canonical.py::test_json_values_that_differ
-parse_float=_mark_number, parse_int
+parse_float=lambda text: _mark_number(repr(float(text))), parse_int
duplicate-members-accepted: a document that two parsers read differently has one form
  core/identity/body.py tests/core/test_fingerprint_canonical.py::test_json_refused
-if len(members) != len(pairs):
+if False:
ignore-is-ignored: a retry whose time stamp moved is another request
  core/identity/body.py tests/core/test_fingerprint_canonical.py::test_ignore
-    if ignore:
-        drop(document, ignore)
-
order-makes-another-form: a library that writes the members of a form in another order is told to use a new key
  core/identity/body.py tests/http/gateway/test_same_request.py::test_forms[stripe-node]
-    return sorted(pairs, key=lambda pair: _top(pair[0], tops))
+    return list(pairs)
conditions-left-out: a 412 for one version is replayed to a request about another one
  core/identity/fingerprint.py tests/http/gateway/test_same_request.py::test_conditions[If-Match]
-for name in names if name in by_name]
+for name in names if False]
numbers-in-many-spellings: an order's number is another key in another program's spelling, and the order is executed
    twice
  core/identity/key.py tests/http/gateway/test_same_request.py::test_numbers_as_keys[body]
- and _WHOLE.fullmatch(lexeme) is None)
+ and False)
media-type-left-out: the same bytes under another media type are the same request
  core/identity/fingerprint.py tests/core/test_fingerprint.py::test_fields
-media = self._type.unbounded if form is BodyForm.MULTIPART else self._type.digest
+media = b""
raw-digest-under-another-key: raw digests that were made under two keys are compared, and found different
  core/identity/fingerprint.py tests/core/test_fingerprint.py::test_keyed_digests_reveal_nothing
-, _keyed(secret, raw)
+, raw
reused-while-running: a different request under the key of a running one gets that one's answer
  protect/duplicates.py tests/http/gateway/test_verdicts.py::test_rule_9_key_reused[sqlite]
-if isinstance(request.judge(claimed), Refuse):
+if False:
reused-when-completed: a different request under a used key is answered from the record
  core/verdict.py tests/core/test_verdict.py::test_different_request_in_any_state
  tests/http/gateway/test_verdicts.py::test_rule_9_key_reused[sqlite]
-if match is Match.DIFFERENT or (match is Match.UNKNOWN
+if (match is Match.UNKNOWN
recipe-change-executes: a request whose sameness cannot be known is executed where it may only be answered
  core/verdict.py tests/core/test_verdict.py::test_recipe_changed
-if match is Match.UNKNOWN:
-                return Refuse(Verdict.KEY_REUSED, record)
+pass
recipe-change-sends-again: a request whose sameness cannot be known is sent in place of one that is in doubt
  protect/claiming.py tests/protect/test_coordinator.py::test_doubt_about_a_request_that_cannot_be_compared[resend]
-case Doubt(record, is_same=True) if takes_over
+case Doubt(record) if takes_over
renamed-route-only-warned-of: a route under another name runs the repeats of old requests again
  store/agreement.py tests/conformance/test_agreement.py::test_a_renamed_route[memory]
  tests/http/gateway/test_identity_change.py::test_a_renamed_route_is_refused[sqlite]
-for name, heirs in _by_name(taken, serving.accepted).items():
+for name, heirs in dict[Name, tuple[str, ...]]().items():
only-a-route-that-is-gone-counts: operations whose routes exchange their names lose their keys
  store/agreement.py tests/conformance/test_agreement.py::test_names_that_are_exchanged[memory]
-taken = handed_over(current + past, serving.routes)
+gone = [route for route in current + past if route.operation not in serving.recipes]
+    taken = handed_over(gone, serving.routes)
removed-route-is-forgotten: a route that gets the requests of one that was removed earlier runs the repeats of old
    requests again
  store/agreement.py tests/conformance/test_agreement.py::test_a_removed_route[memory]
-taken = handed_over(current + past, serving.routes)
+taken = handed_over(current, serving.routes)
gateway-under-an-old-name-is-overlooked: two gateways of a service serve the same requests under two names
  store/agreement.py tests/conformance/test_agreement.py::test_two_configurations_of_one_service_at_once[memory-route]
-if counted.keys or (question.service == self.service and question.is_served):
+if counted.keys:
renamed-service-is-a-second-one: a service that was stopped and started under another name runs the repeats of old
    requests again
  store/agreement.py tests/conformance/test_agreement.py::test_a_renamed_service[memory-stopped]
  tests/http/gateway/test_identity_change.py::test_a_renamed_service
-apart = [pair for pair in taken if (pair[0].service, pair[0].operation) in running]
+apart = list(taken)
second-service-is-a-renamed-one: a second service cannot start beside one with the same routes
  store/agreement.py tests/conformance/test_agreement.py::test_a_second_service[memory]
-apart = [pair for pair in taken if (pair[0].service, pair[0].operation) in running]
+apart: list[tuple[ServedRoute, ServedRoute]] = []
stopped-gateway-counts-as-running: a service that is renamed while it is stopped is taken for a second one
  store/memory/guard.py tests/http/gateway/test_identity_change.py::test_a_renamed_service
-self._note_stopped(was_open=was_open)
+self._note_stopped(was_open=False)
fingerprint-key-lost-unseen: a start without a key of fingerprints has every repeat refused as another request
  store/agreement.py tests/http/gateway/test_identity_change.py::test_a_fingerprint_key_that_is_lost[sqlite-another]
-if serving.fingerprint_keys.get(key) != check
+if False
running-gateway-is-not-seen: a gateway that runs for more than a minute counts as stopped
  store/memory/guard.py tests/store/test_guard.py::test_a_gateway_that_runs_is_seen
-        if self._membership is None:
-            await self.cold.note_running(self._serving.gateway_id, is_running=True)
-
trial-is-an-agreement: who only checks a configuration has accepted the loss of keys
  store/relational/store.py tests/conformance/test_agreement.py::test_a_trial_changes_nothing[sqlite]
-counted, writes=not is_trial)
+counted, writes=True)
  store/relational/store.py
-"read" if is_trial else "change"
+"change"
content-of-the-released: a request that is known to have had no effect keeps its content from other keys
  store/relational/sql/operations.sql
  tests/conformance/test_contents.py::test_each_history_holds_or_frees_its_content[sqlite]
-o.state NOT IN ('released', 'completed', 'tombstone')
+o.state NOT IN ('completed', 'tombstone')
content-in-doubt-is-free: a request in doubt may be executed again under another key
  store/relational/sql/operations.sql
  tests/conformance/test_contents.py::test_each_history_holds_or_frees_its_content[sqlite]
-o.state NOT IN ('released', 'completed', 'tombstone')
+o.state NOT IN ('released', 'completed', 'tombstone', 'in_doubt')
contents-without-a-lock: two gateways execute one content under two keys at the same time
  store/postgres/executor.py tests/store/test_postgres.py::test_a_content_is_claimed_once_by_gateways_at_once
-self._transact(commands, SERIALIZABLE)
+self._transact(commands, "READ COMMITTED")
members-of-a-cut-document: of a document with many members it is said that one was added which was not
  core/identity/fingerprint.py tests/core/test_difference.py::test_members_within_bounds
-value if is_cut else None
+None
distinct-by-any-word: any value of Idempotency-Distinct lets a repeat through
  core/identity/fingerprint.py tests/http/gateway/test_likely_duplicates.py::test_who_means_it_says_so
-.lower() in _TRUE
+.lower() != b""
""")
