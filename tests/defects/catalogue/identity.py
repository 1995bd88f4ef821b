"""Defects of identity and sameness: whose operation it is, and whether it is the same request."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

IDENTITY = "core/identity/scope.py"
_TOKEN = "core/identity/token.py"
_TOKEN_TEST = "tests/core/test_identity_token.py::"
_ID = 'framed(b"operation", _utf8(service), _utf8(operation))'
_CANONICAL = "tests/core/test_fingerprint_canonical.py::"
_RECIPES = "store/recipes.py"
_AGREEMENT = "tests/conformance/test_agreement.py::"

_CONTENTS = "tests/conformance/test_contents.py::"

DEFECTS = (
    Defect(
        "scope-left-out",
        "callers share their keys",
        (
            Edit(
                IDENTITY,
                "derivation_of(service, operation) + framed(scope_digest)",
                "derivation_of(service, operation)",
            ),
        ),
        (
            "tests/core/test_identity.py::test_operation_ids_differ",
            "tests/http/gateway/test_verdicts.py::test_scopes_never_meet[sqlite]",
        ),
    ),
    Defect(
        "service-left-out",
        "services on one store share their keys",
        (Edit(IDENTITY, _ID, _ID.replace("_utf8(service), ", "")),),
        ("tests/core/test_identity.py::test_operation_ids_differ",),
    ),
    Defect(
        "operation-left-out",
        "a key on another operation is the same operation",
        (Edit(IDENTITY, _ID, _ID.replace(", _utf8(operation)", "")),),
        ("tests/core/test_identity.py::test_operation_ids_differ",),
    ),
    Defect(
        "incomparable-means-different",
        "a caller whose request cannot be compared is told to send it under a new key, and pays twice",
        (Edit("protect/compose.py", "case=None if why is None else INCOMPARABLE,", "case=None,"),),
        ("tests/http/gateway/test_times.py::test_a_repeat_that_cannot_be_compared[another key]",),
    ),
    Defect(
        "identity-key-left-out",
        "the digests of callers and keys can be computed without the secret",
        (Edit(IDENTITY, "return of.digest if secret is None else", "return of.digest if True else"),),
        (
            "tests/core/test_identity.py::test_with_a_secret_the_digests_cannot_be_computed",
            "tests/http/gateway/test_identity_change.py::test_guesses_cannot_be_tested[sqlite]",
        ),
    ),
    Defect(
        "identity-key-changes-unseen",
        "a start with another identity key forgets every key",
        (Edit(IDENTITY, "return recipe if secret is None else", "return recipe if True else"),),
        ("tests/http/gateway/test_identity_change.py::test_another_identity_key[sqlite]",),
    ),
    Defect(
        "status-of-a-plain-scope",
        "callers are not shown their own operations where there is an identity key",
        (Edit("protect/resource.py", "stored_digest(caller.scope, secret)", "caller.scope.digest"),),
        ("tests/http/gateway/test_status.py::test_a_head_has_no_body",),
    ),
    Defect(
        "parts-run-together",
        "a byte can move from one part of a digest into the next",
        (Edit("core/framing.py", "        pieces.append(_LENGTHS[length] if", "        _ = (_LENGTHS[length] if"),),
        ("tests/core/test_identity.py::test_boundaries_count",),
    ),
    Defect(
        "scope-kept-in-clear",
        "what a scope was made from can be read in the store",
        (
            Edit(
                "core/identity/scope.py",
                'Scope(sha256(_BEFORE + len(found).to_bytes(8, "big") + found).digest())',
                "Scope(found)",
            ),
        ),
        ("tests/core/test_identity_scope.py::test_nothing_in_clear",),
    ),
    Defect(
        "any-hop-is-trusted",
        "whoever connects may say which caller it is",
        (Edit("core/identity/scope.py", "self.trusted is not None and not", "self.trusted is None and not"),),
        ("tests/core/test_identity_scope.py::test_trusted_hop",),
    ),
    Defect(
        "expiring-token-as-scope",
        "a caller with a fresh token is another caller",
        (Edit("core/identity/scope.py", "if _is_json_web_token(value):", "if False:"),),
        ("tests/core/test_identity_scope.py::test_expiring_token",),
    ),
    Defect(
        "token-for-others",
        "a token that was made for another API names a caller here",
        (Edit(_TOKEN, 'if not _is_for(issuer.audience, payload.get("aud")):', "if False:"),),
        (f"{_TOKEN_TEST}test_claims[audience]",),
    ),
    Defect(
        "token-without-end",
        "a token that has expired names a caller",
        (Edit(_TOKEN, "if now_seconds >= until:", "if False:"),),
        (f"{_TOKEN_TEST}test_claims[expired]",),
    ),
    Defect(
        "token-number-is-text",
        'the subject 42 gets the responses of the subject "42"',
        (Edit(_TOKEN, "framed(name.encode(), kind, text.encode())", "framed(name.encode(), text.encode())"),),
        ("tests/http/gateway/test_tokens.py::test_callers_are_told_apart",),
    ),
    Defect(
        "token-remembered-for-good",
        "a verified token counts after its end",
        (
            Edit(
                "callers/tokens.py",
                "if is_current and self._wall_seconds() < known.until_seconds:",
                "if is_current:",
            ),
        ),
        ("tests/http/gateway/test_tokens.py::test_a_refreshed_token_is_the_same_caller",),
    ),
    Defect(
        "token-of-a-withdrawn-key",
        "a token that was verified counts although its key was withdrawn",
        (Edit("callers/tokens.py", "known.version == known.keys.version and known.keys.is_known", "True"),),
        ("tests/http/gateway/test_tokens.py::test_a_key_that_was_withdrawn",),
    ),
    Defect(
        "algorithm-chosen-by-the-token",
        "a token chooses what its key verifies",
        (Edit("callers/key_set.py", "if token.algorithm not in self.algorithms:", "if False:"),),
        ("tests/callers/test_key_set.py::test_an_algorithm_is_bound_to_a_key",),
    ),
    Defect(
        "issuer-asked-for-each-token",
        "whoever sends tokens of unknown keys makes the gateway ask the issuer as often",
        (Edit("callers/key_set.py", "self._clock() >= self._may_fetch_from)", "True)"),),
        ("tests/callers/test_key_set.py::test_one_fetch_for_all",),
    ),
    Defect(
        "second-field-line-wins",
        "of two lines of the key's field the last one is the key",
        (
            Edit("core/identity/key.py", "if len(values) != 1:", "if not values:"),
            Edit("core/identity/key.py", 'value = values[0].strip(b" \\t")', 'value = values[-1].strip(b" \\t")'),
        ),
        ("tests/core/test_identity_key.py::test_given_twice",),
    ),
    Defect(
        "repeated-fields-pass",
        "a field that says who calls, or under which key, may be there twice",
        (Edit("protect/ambiguity.py", "if len(values) > 1 and (name in _SINGLE or name in once):", "if False:"),),
        ("tests/http/edge/test_strictness.py::test_an_ambiguous_field_is_a_fault",),
    ),
    Defect(
        "dot-segments-pass",
        "a service that resolves dot segments is reached past its route",
        (Edit("core/spelling.py", "if _DOT_SEGMENT.search(each)", "if False"),),
        ("tests/http/gateway/test_spellings.py::test_a_spelling_is_no_way_around_a_route[nginx]",),
    ),
    Defect(
        "formats-pass",
        "a service that takes a format from the path is reached past its route",
        (Edit("core/routing.py", 'tail, is_literal = rb"(?:\\.[^/]*)?"', 'tail, is_literal = b""'),),
        ("tests/http/gateway/test_spellings.py::test_a_spelling_is_no_way_around_a_route[Rails, Grape]",),
    ),
    Defect(
        "another-route-takes-a-spelling",
        "a route with a variable takes what may be read as the path of one before it",
        (Edit("protect/ambiguity.py", "if routes.is_clear(entry, target) and not names_another(head):", "if True:"),),
        ("tests/http/gateway/test_spellings.py::test_a_variable_takes_nothing_from_a_route_before_it",),
    ),
    Defect(
        "unprotected-in-any-spelling",
        "what the file calls unprotected passes in spellings that may be read as a route",
        (
            Edit(
                "core/routing.py",
                "if not self._has_unprotected or not is_plain(target):",
                "if not self._has_unprotected:",
            ),
        ),
        ("tests/http/gateway/test_spellings.py::test_spellings_that_the_file_lists",),
    ),
    Defect(
        "long-path-in-one-piece",
        "the path of a head that comes in one piece is not measured",
        (Edit("protect/ambiguity.py", "if len(target) > PATH_BYTES_MAX and", "if False and"),),
        ("tests/http/gateway/test_spellings.py::test_a_long_path_in_one_piece[/other/]",),
    ),
    Defect(
        "dot-segments-forwarded",
        "a protected target with dot segments is forwarded",
        (
            Edit(
                "protect/ambiguity.py",
                "if has_dot_segments(normalise_path(path)) or any(map(has_dot_segments, paths)):",
                "if False:",
            ),
        ),
        ("tests/http/edge/test_strictness.py::test_an_ambiguous_target_is_a_fault",),
    ),
    Defect(
        "float-swallows-digits",
        "two sums of money that a float cannot tell apart are one request",
        (
            Edit(
                "core/identity/body.py",
                "parse_float=_mark_number, parse_int",
                "parse_float=lambda text: _mark_number(repr(float(text))), parse_int",
            ),
        ),
        (_CANONICAL + "test_json_values_that_differ",),
    ),
    Defect(
        "duplicate-members-accepted",
        "a document that two parsers read differently has one form",
        (Edit("core/identity/body.py", "if len(members) != len(pairs):", "if False:"),),
        (_CANONICAL + "test_json_refused",),
    ),
    Defect(
        "ignore-is-ignored",
        "a retry whose time stamp moved is another request",
        (Edit("core/identity/body.py", "    if ignore:\n        drop(document, ignore)\n", ""),),
        (_CANONICAL + "test_ignore",),
    ),
    Defect(
        "order-makes-another-form",
        "a library that writes the members of a form in another order is told to use a new key",
        (
            Edit(
                "core/identity/body.py",
                "    return sorted(pairs, key=lambda pair: _top(pair[0], tops))\n",
                "    return list(pairs)\n",
            ),
        ),
        ("tests/http/gateway/test_same_request.py::test_forms[stripe-node]",),
    ),
    Defect(
        "conditions-left-out",
        "a 412 for one version is replayed to a request about another one",
        (Edit("core/identity/fingerprint.py", "for name in names if name in by_name]", "for name in names if False]"),),
        ("tests/http/gateway/test_same_request.py::test_conditions[If-Match]",),
    ),
    Defect(
        "numbers-in-many-spellings",
        "an order's number is another key in another program's spelling, and the order is executed twice",
        (Edit("core/identity/key.py", " and _WHOLE.fullmatch(lexeme) is None)", " and False)"),),
        ("tests/http/gateway/test_same_request.py::test_numbers_as_keys[body]",),
    ),
    Defect(
        "media-type-left-out",
        "the same bytes under another media type are the same request",
        (
            Edit(
                "core/identity/fingerprint.py",
                "media = self._type.unbounded if form is BodyForm.MULTIPART else self._type.digest",
                'media = b""',
            ),
        ),
        ("tests/core/test_fingerprint.py::test_fields",),
    ),
    Defect(
        "raw-digest-under-another-key",
        "raw digests that were made under two keys are compared, and found different",
        (Edit("core/identity/fingerprint.py", ", _keyed(secret, raw)\n", ", raw\n"),),
        ("tests/core/test_fingerprint.py::test_keyed_digests_reveal_nothing",),
    ),
    Defect(
        "reused-while-running",
        "a different request under the key of a running one gets that one's answer",
        (
            Edit(
                "protect/duplicates.py",
                "if isinstance(request.judge(claimed), Refuse):",
                "if False:",
            ),
        ),
        ("tests/http/gateway/test_verdicts.py::test_rule_9_key_reused[sqlite]",),
    ),
    Defect(
        "reused-when-completed",
        "a different request under a used key is answered from the record",
        (
            Edit(
                "core/verdict.py",
                "if match is Match.DIFFERENT or (match is Match.UNKNOWN",
                "if (match is Match.UNKNOWN",
            ),
        ),
        (
            "tests/core/test_verdict.py::test_different_request_in_any_state",
            "tests/http/gateway/test_verdicts.py::test_rule_9_key_reused[sqlite]",
        ),
    ),
    Defect(
        "recipe-change-executes",
        "a request whose sameness cannot be known is executed where it may only be answered",
        (
            Edit(
                "core/verdict.py",
                "if match is Match.UNKNOWN:\n                return Refuse(Verdict.KEY_REUSED, record)",
                "pass",
            ),
        ),
        ("tests/core/test_verdict.py::test_recipe_changed",),
    ),
    Defect(
        "recipe-change-sends-again",
        "a request whose sameness cannot be known is sent in place of one that is in doubt",
        (
            Edit(
                "protect/claiming.py",
                "case Doubt(record, is_same=True) if takes_over",
                "case Doubt(record) if takes_over",
            ),
        ),
        ("tests/protect/test_coordinator.py::test_doubt_about_a_request_that_cannot_be_compared[resend]",),
    ),
    Defect(
        "renamed-route-only-warned-of",
        "a route under another name runs the repeats of old requests again",
        (
            Edit(
                _RECIPES,
                "for name, heirs in _by_name(taken, serving.accepted).items():",
                "for name, heirs in dict[Name, tuple[str, ...]]().items():",
            ),
        ),
        (
            _AGREEMENT + "test_a_renamed_route[memory]",
            "tests/http/gateway/test_identity_change.py::test_a_renamed_route_is_refused[sqlite]",
        ),
    ),
    Defect(
        "only-a-route-that-is-gone-counts",
        "operations whose routes exchange their names lose their keys",
        (
            Edit(
                _RECIPES,
                "taken = handed_over(current + past, serving.routes)",
                "gone = [route for route in current + past if route.operation not in serving.recipes]\n"
                "    taken = handed_over(gone, serving.routes)",
            ),
        ),
        (_AGREEMENT + "test_names_that_are_exchanged[memory]",),
    ),
    Defect(
        "removed-route-is-forgotten",
        "a route that gets the requests of one that was removed earlier runs the repeats of old requests again",
        (
            Edit(
                _RECIPES,
                "taken = handed_over(current + past, serving.routes)",
                "taken = handed_over(current, serving.routes)",
            ),
        ),
        (_AGREEMENT + "test_a_removed_route[memory]",),
    ),
    Defect(
        "gateway-under-an-old-name-is-overlooked",
        "two gateways of a service serve the same requests under two names",
        (
            Edit(
                _RECIPES,
                "if counted.keys or (question.service == self.service and question.is_served):",
                "if counted.keys:",
            ),
        ),
        (
            _AGREEMENT + "test_two_configurations_of_one_service_at_once[memory-route]",
            "tests/http/gateway/test_identity_change.py::test_two_configurations_of_one_service",
        ),
    ),
    Defect(
        "renamed-service-is-a-second-one",
        "a service that was stopped and started under another name runs the repeats of old requests again",
        (
            Edit(
                _RECIPES,
                "apart = [pair for pair in taken if (pair[0].service, pair[0].operation) in running]",
                "apart = list(taken)",
            ),
        ),
        (
            _AGREEMENT + "test_a_renamed_service[memory-stopped]",
            "tests/http/gateway/test_identity_change.py::test_a_renamed_service",
        ),
    ),
    Defect(
        "second-service-is-a-renamed-one",
        "a second service cannot start beside one with the same routes",
        (
            Edit(
                _RECIPES,
                "apart = [pair for pair in taken if (pair[0].service, pair[0].operation) in running]",
                "apart: list[tuple[ServedRoute, ServedRoute]] = []",
            ),
        ),
        (
            _AGREEMENT + "test_a_second_service[memory]",
            "tests/http/gateway/test_identity_change.py::test_a_second_service_beside_one_that_runs",
        ),
    ),
    Defect(
        "stopped-gateway-counts-as-running",
        "a service that is renamed while it is stopped is taken for a second one",
        (
            Edit(
                "store/memory/guard.py",
                "self._note_stopped(was_open=was_open)",
                "self._note_stopped(was_open=False)",
            ),
        ),
        ("tests/http/gateway/test_identity_change.py::test_a_renamed_service",),
    ),
    Defect(
        "fingerprint-key-lost-unseen",
        "a start without a key of fingerprints has every repeat refused as another request",
        (Edit("store/recipes.py", "if serving.fingerprint_keys.get(key) != check", "if False"),),
        ("tests/http/gateway/test_identity_change.py::test_a_fingerprint_key_that_is_lost[sqlite-another]",),
    ),
    Defect(
        "running-gateway-is-not-seen",
        "a gateway that runs for more than a minute counts as stopped",
        (
            Edit(
                "store/memory/guard.py",
                "        if self._membership is None:\n"
                "            await self.cold.note_running(self._serving.gateway_id, is_running=True)\n",
                "",
            ),
        ),
        ("tests/store/test_guard.py::test_a_gateway_that_runs_is_seen",),
    ),
    Defect(
        "trial-is-an-agreement",
        "who only checks a configuration has accepted the loss of keys",
        (
            Edit(
                "store/relational/store.py",
                "counted, writes=not is_trial)",
                "counted, writes=True)",
            ),
            Edit(
                "store/relational/store.py",
                "await (self._query(agree) if is_trial else self._change(agree))",
                "await self._change(agree)",
            ),
        ),
        (_AGREEMENT + "test_a_trial_changes_nothing[sqlite]",),
    ),
    Defect(
        "content-of-the-released",
        "a request that is known to have had no effect keeps its content from other keys",
        (
            Edit(
                "core/lifecycle.py",
                "        case State.RELEASED:\n            return False\n",
                "",
            ),
        ),
        (_CONTENTS + "test_each_history_holds_or_frees_its_content[sqlite]",),
    ),
    Defect(
        "content-in-doubt-is-free",
        "a request in doubt may be executed again under another key",
        (
            Edit(
                "store/relational/sql/select_content_holders.sql",
                "o.state NOT IN ('released', 'completed', 'tombstone')",
                "o.state NOT IN ('released', 'completed', 'tombstone', 'in_doubt')",
            ),
        ),
        (_CONTENTS + "test_each_history_holds_or_frees_its_content[sqlite]",),
    ),
    Defect(
        "contents-without-a-lock",
        "two gateways execute one content under two keys at the same time",
        (
            Edit(
                "store/postgres/executor.py",
                "self._transact(commands, SERIALIZABLE)",
                'self._transact(commands, "READ COMMITTED")',
            ),
        ),
        ("tests/store/test_postgres.py::test_a_content_is_claimed_once_by_gateways_at_once",),
    ),
    Defect(
        "members-of-a-cut-document",
        "of a document with many members it is said that one was added which was not",
        (
            Edit(
                "core/identity/fingerprint.py",
                "value if is_cut else None",
                "None",
            ),
        ),
        ("tests/core/test_difference.py::test_members_within_bounds",),
    ),
    Defect(
        "distinct-by-any-word",
        "any value of Idempotency-Distinct lets a repeat through",
        (Edit("core/identity/fingerprint.py", ".lower() in _TRUE", '.lower() != b""'),),
        ("tests/http/gateway/test_likely_duplicates.py::test_who_means_it_says_so[sqlite]",),
    ),
)
