"""Defects of doubt: what ends it, who may act on it, and what is written down of that."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

RECOVERY = "core/recovery.py"
_RECOVERY = "tests/core/test_recovery.py::"
_HTTP = "tests/http/gateway/test_recovery.py::"
_GUARD = "tests/store/test_guard.py::"
_LOST = "tests/integration/test_lost_memory.py::"
_BEGAN = "min(in_doubt_since_us(record), now_us)"
_CARRIED = f"{_BEGAN} if isinstance(command, Takeover) else None"

DEFECTS = (
    Defect(
        "takeover-release-ends-doubt",
        "the store lets a takeover that had no effect free the key",
        (Edit("core/lifecycle.py", "if (row.refused_under_doubt and record.carries_doubt) or row", "if row"),),
        ("tests/conformance/test_fences.py::test_a_takeover_cannot_free_the_key[sqlite-release]",),
    ),
    Defect(
        "takeover-outcome-ends-doubt",
        "a takeover that was answered 'no effect' is told and recorded as if it were the first attempt",
        (
            Edit(
                "core/outcome.py",
                "            if carries_doubt:\n"
                "                return Outcome(Event.ABANDON, Verdict.IN_DOUBT)\n"
                "            if status",
                "            if status",
            ),
        ),
        (
            "tests/core/test_outcome.py::test_event_and_word_of_every_answer",
            _HTTP + "test_doubt_is_joined_over_attempts[sqlite-503]",
        ),
    ),
    Defect(
        "unsent-takeover-ends-doubt",
        "a takeover that was not sent frees the key",
        (
            Edit(
                "core/outcome.py",
                "    if carries_doubt:\n"
                "        return Outcome(Event.ABANDON, Verdict.IN_DOUBT)\n"
                "    return Outcome(Event.RELEASE",
                "    return Outcome(Event.RELEASE",
            ),
        ),
        ("tests/core/test_outcome.py::test_nothing_sent",),
    ),
    Defect(
        "takeover-carries-no-doubt",
        "a claim by takeover is a claim like any other",
        (Edit("core/lifecycle.py", f"carried_us={_CARRIED},", "carried_us=None,"),),
        ("tests/core/test_lifecycle.py::test_a_takeover_keeps_the_request_and_the_beginning",),
    ),
    Defect(
        "doubt-begins-with-the-takeover",
        "operators are told that a doubt began when its last attempt did",
        (Edit("core/lifecycle.py", f"carried_us={_CARRIED},", f"carried_us={_CARRIED.replace(_BEGAN, 'now_us')},"),),
        ("tests/conformance/test_recovery.py::test_since_when_it_is_in_doubt[sqlite]",),
    ),
    Defect(
        "doubt-begins-with-the-end-of-the-lease",
        "an attempt that was reported as not known is in doubt only since its lease would have ended",
        (Edit("core/lifecycle.py", "lease_until_us=min(record.lease_until_us, now_us),", ""),),
        ("tests/conformance/test_recovery.py::test_since_when_it_is_in_doubt[sqlite]",),
    ),
    Defect(
        "doubt-executes-again",
        "a retry of an operation in doubt is executed, whatever the route says of recovery",
        (
            Edit(
                "protect/claiming.py",
                "takes_over = False, isinstance(route.recovery, Resend)",
                "takes_over = False, True",
            ),
        ),
        ("tests/http/gateway/test_verdicts.py::test_rule_14_in_doubt[sqlite]",),
    ),
    Defect(
        "doubt-of-another-gateway-is-an-answer",
        "what a gateway behind this one does not know is taken for a request without an effect",
        (Edit("core/outcome.py", "    if said is not None:\n", "    if False:\n"),),
        ("tests/http/gateway/test_behind_a_gateway.py::test_doubt_of_the_inner_one[answered]",),
    ),
    Defect(
        "outstanding-is-an-answer",
        "a service's 'a request is outstanding for this key' is kept as the response to the request",
        (Edit("core/outcome.py", " and is_outstanding(document):", " and False:"),),
        ("tests/http/gateway/test_behind_a_gateway.py::test_a_service_that_says_outstanding[-draft]",),
    ),
    Defect(
        "in-progress-is-an-answer",
        "where recovery sends again, the upstream's own 'in progress' is recorded as the answer",
        (Edit("core/outcome.py", "if policy.resends and status in RESEND_IN_PROGRESS:", "if False:"),),
        (
            "tests/core/test_outcome.py::test_progress_on_resend",
            _HTTP + "test_doubt_is_joined_over_attempts[sqlite-409]",
        ),
    ),
    Defect(
        "recovered-over-the-owners-journal",
        "an operation is recovered while its owner may still bring the answer from its journal",
        (
            Edit(
                RECOVERY,
                "return snapshot.now_us - record.lease_until_us >= grace_us and reachable_us >= grace_us",
                "return True",
            ),
        ),
        (_RECOVERY + "test_grace_of_the_owner",),
    ),
    Defect(
        "disproved-before-settle",
        "a probe that finds nothing frees the key while the request may still arrive",
        (Edit(RECOVERY, "if began.now_us - record.lease_until_us < policy.settle_us:", "if False:"),),
        (_RECOVERY + "test_never_happened_only_after_settle",),
    ),
    Defect(
        "settled-by-a-clock-set-ahead",
        "a probe believes the store's clock alone that no request can arrive any more",
        (Edit(RECOVERY, "if began.steady_seconds * MICROSECONDS < policy.settle_us + leased_us:", "if False:"),),
        (
            _RECOVERY + "test_never_happened_only_by_a_steady_clock",
            "tests/simulation/test_simulation.py::test_no_invariant_breaks_again",
        ),
    ),
    Defect(
        "any-answer-disproves",
        "an answer of a probe that no rule explains frees the key",
        (Edit(RECOVERY, "    if is_done == is_never:\n", "    is_never = not is_done\n    if is_done == is_never:\n"),),
        (_RECOVERY + "test_what_an_answer_means",),
    ),
    Defect(
        "others-operations-probed",
        "a service asks its own upstream about what only has the name of its route",
        (Edit("protect/probing.py", "if not is_of(record.identity, self._service, route.operation):", "if False:"),),
        ("tests/http/gateway/test_shared.py::test_a_service_asks_about_its_own_operations_alone[another-operation]",),
    ),
    Defect(
        "probe-takes-the-token",
        "a probe takes the operation over, and fences the late answer off",
        (
            Edit(
                "protect/probing.py",
                "            before = await self._store.read(operation_id)\n",
                "            taken = Takeover(operation_id, record.token, uuid4(), self._who, lease_us)\n"
                "            await self._store.apply(taken)\n"
                "            before = await self._store.read(operation_id)\n"
                "            before = replace(before, record=replace(before.record, state=State.IN_DOUBT))\n",
            ),
            Edit(
                "protect/probing.py",
                "    Snapshot,\n    State,\n    trace_of_attempt,\n)",
                "    Snapshot,\n    State,\n    Takeover,\n    trace_of_attempt,\n)",
            ),
            Edit(
                "protect/probing.py",
                "from dataclasses import dataclass\n",
                "from dataclasses import dataclass, replace\n",
            ),
        ),
        (_HTTP + "test_a_late_answer_wins_over_a_probe[sqlite]",),
    ),
    Defect(
        "probers-crowd",
        "everybody who retries probes at the same time",
        (
            Edit(
                "store/operations.py",
                "if self.is_held(now_us) or (self.is_put_off(now_us) and not is_urgent):",
                "if self.is_put_off(now_us) and not is_urgent:",
            ),
        ),
        ("tests/conformance/test_recovery.py::test_of_many_probers_one_gets_the_lease[sqlite]",),
    ),
    Defect(
        "healing-repeats-are-forbidden",
        "callers are told not to repeat what only a repeat ends",
        (Edit("protect/problem.py", "return DOUBTS[type(recovery)]", "return DOUBTS[Hold]"),),
        (
            "tests/http/edge/test_problem.py::test_doubt_is_told_by_what_a_repeat_does",
            _HTTP + "test_callers_are_told_what_heals[sqlite-resend]",
        ),
    ),
    Defect(
        "body-beats-what-is-known",
        "a response that may be of an earlier attempt means what its body says",
        (
            Edit(
                "core/outcome.py",
                "    if policy.resends and status in RESEND_IN_PROGRESS:",
                "    if policy.resends and status in RESEND_IN_PROGRESS and not policy.when:",
            ),
        ),
        ("tests/core/test_outcome.py::test_what_the_body_says_comes_after_what_is_known",),
    ),
    Defect(
        "resource-of-nothing",
        "what a response named as made is kept when it is known that nothing was",
        (
            Edit(
                "core/lifecycle.py",
                "        remember_until_us=now_us + remember_us,\n        resource=None,",
                "        remember_until_us=now_us + remember_us,",
            ),
        ),
        ("tests/conformance/test_recovery.py::test_what_was_made_is_known_until_nothing_was[sqlite]",),
    ),
    Defect(
        "held-doubt-is-promised-a-probe",
        "callers are told to repeat what can neither be asked about nor sent again",
        (Edit(RECOVERY, "case Probe() if probe_target(recovery, record) is None:", "case Probe() if False:"),),
        (_RECOVERY + "test_a_repeat_is_promised_nothing_that_recovery_cannot_do",),
    ),
    Defect(
        "retries-put-the-background-off",
        "each probe for a request that waits makes the pause of the background longer",
        (
            Edit(
                "protect/probing.py",
                "PROBE_FLOOR_US if is_urgent else pause_us(lease.background_tries)",
                "pause_us(lease.tries)",
            ),
        ),
        (
            "tests/protect/test_probing.py::test_who_waits_never_lengthens_the_pause",
            _HTTP + "test_retries_keep_no_answer_back",
        ),
    ),
    Defect(
        "retries-hammer-the-service",
        "a service that does not know is asked as often as anybody repeats",
        (Edit("store/operations.py", "if self.asked_us <= now_us < self.asked_us + PROBE_FLOOR_US:", "if False:"),),
        ("tests/conformance/test_recovery.py::test_nobody_asks_again_at_once[sqlite]",),
    ),
    Defect(
        "later-probe-asks-nobody",
        "a probe that was configured after the claim is never sent",
        (
            Edit(
                RECOVERY,
                "    if record.probe is not None:\n        return record.probe\n    request, identity",
                "    if True:\n        return record.probe\n    request, identity",
            ),
        ),
        (
            _RECOVERY + "test_a_probe_that_came_later_is_that_of_the_claim",
            _HTTP + "test_a_probe_that_is_configured_later_resolves_older_doubts[sqlite]",
        ),
    ),
    Defect(
        "later-probe-guesses-its-host",
        "a probe is made with half a host, and the 'not found' of another one may free the key",
        (Edit(RECOVERY, " or request.host.endswith(CUT):", ":"),),
        ("tests/protect/test_probing.py::test_a_probe_that_cannot_be_made[host-was-cut]",),
    ),
    Defect(
        "purge-without-audit",
        "who dropped an answer is not written down",
        (
            Edit(
                "store/relational/executor.py",
                "(audit := audit_of(command)) is not None:",
                "(audit := audit_of(command)) is not None and EVENT_OF[type(command)] != 'purge':",
            ),
        ),
        ("tests/conformance/test_recovery.py::test_whoever_ends_a_doubt_is_written_down[sqlite]",),
    ),
    Defect(
        "doubt-is-purged",
        "an operator can drop a doubt",
        (Edit("core/lifecycle.py", "Row((_S.COMPLETED,), _E.PURGE,", "Row((_S.COMPLETED, _S.IN_DOUBT), _E.PURGE,"),),
        ("tests/core/test_lifecycle.py::test_every_state_can_be_left_but_by_time_alone_never_from_doubt",),
    ),
    Defect(
        "operator-need-not-wait",
        "an operator may say that nothing happened while a request may still arrive, without a word of warning",
        (Edit("admin/resolution.py", "if settled_us <= snapshot.now_us:", "if True:"),),
        ("tests/admin/test_operations.py::test_never_happened_is_not_known_early",),
    ),
    Defect(
        "older-state-unnoticed",
        "a store that was put back to an older state is believed",
        (Edit("store/memory/epoch.py", "if epoch.token < seen.token:", "if False:"),),
        ("tests/store/test_guard.py::test_a_lost_memory_is_noticed",),
    ),
    Defect(
        "promotion-unnoticed",
        "a standby that was promoted is believed to know all that was acknowledged",
        (
            Edit(
                "store/memory/epoch.py",
                "return _REPLACED if epoch.identity in seen.former else _ANOTHER",
                "return None",
            ),
        ),
        ("tests/store/test_guard.py::test_a_lost_memory_is_noticed",),
    ),
    Defect(
        "lower-witness-believed",
        "a copy that was put back is believed as long as it knows the gateway, however much it lacks",
        (Edit("store/memory/epoch.py", "if held is None or held < note.number:", "if held is None:"),),
        ("tests/store/test_epoch.py::test_a_witness[lower]",),
    ),
    Defect(
        "witness-of-a-repeat-unraised",
        "a claim whose answer was lost is granted again without a note: a loss of it goes unnoticed",
        (Edit("store/postgres/executor.py", "                await self._link.touch()\n", "                pass\n"),),
        ("tests/conformance/test_witness.py::test_a_command_that_took_effect_before_is_noted[postgres]",),
    ),
    Defect(
        "notes-uncompared-on-a-new-connection",
        "a Postgres that is replaced by an older copy under a running gateway grants what it has forgotten",
        (
            Edit(
                "store/postgres/dialer.py",
                "if (why := missing(reading.notes, found, beyond)) is not None:",
                "if (why := None) is not None:",
            ),
        ),
        ("tests/conformance/test_witness.py::test_a_store_that_lacks_what_it_acknowledged[postgres]",),
    ),
    Defect(
        "grant-of-an-uncompared-memory",
        "a claim that was under way while another memory was found is believed to be granted by the known one",
        (Edit("store/memory/guard.py", "isinstance(command, _GRANTING) and trust is not self._trust:", "False:"),),
        ("tests/store/test_guard.py::test_a_grant_from_while_another_memory_was_found",),
    ),
    Defect(
        "claim-of-an-uncompared-memory",
        "a claim from while another memory was found is believed when it is said again",
        (
            Edit(
                "store/memory/epoch.py",
                "(record.state in UNEXECUTED or record.attempt_id == attempt_id)",
                "record.state in UNEXECUTED",
            ),
        ),
        ("tests/store/test_guard.py::test_a_grant_from_while_another_memory_was_found",),
    ),
    Defect(
        "shared-note-ignored",
        "what other gateways saw of the store, as Redis has it, is not looked at: a fresh host believes any store",
        (Edit("store/memory/guard.py", "return self._uncompared, True", "return None, True"),),
        (
            _GUARD + "test_a_host_without_a_note_knows_what_the_others_saw",
            "tests/integration/test_sweeps_failover.py::test_the_first_gateway_after_a_failover_is_a_fresh_one",
        ),
    ),
    Defect(
        "shared-note-goes-back",
        "a gateway that saw less takes away what another noted of the store",
        (
            Edit(
                "store/redis/lua/seen.lua",
                "if held ~= identity or is_higher(token, held_token) then",
                "if true then",
            ),
        ),
        ("tests/store/test_redis_seen.py::test_the_token_never_goes_back",),
    ),
    Defect(
        "shared-note-written-over-unread",
        "a gateway that could not read what was noted of another memory replaces it",
        (Edit("store/redis/lua/seen.lua", " and held ~= compared then", " and false then"),),
        ("tests/store/test_redis_seen.py::test_another_memory_yields_only_to_who_judged_it",),
    ),
    Defect(
        "shared-number-goes-back",
        "a late write takes away the number of a link that was noted in Redis after it",
        (
            Edit(
                "store/redis/lua/seen.lua",
                "local is_later = known and number_of(noted) > number_of(known)",
                "local is_later = known",
            ),
        ),
        ("tests/store/test_redis_seen.py::test_the_number_of_a_link_never_goes_back",),
    ),
    Defect(
        "shared-links-dropped-unread",
        "who has not compared the note in Redis drops what in it may tell of a loss",
        (
            Edit(
                "store/redis/lua/seen.lua",
                "local is_compared = not held or held == compared",
                "local is_compared = true",
            ),
        ),
        ("tests/store/test_redis_seen.py::test_what_a_later_link_stands_for_is_dropped_by_who_compared_it",),
    ),
    Defect(
        "shared-acknowledgements-ignored",
        "what the store acknowledged to gateways, as Redis has it, is not compared: a slightly older copy is believed",
        (Edit("store/memory/epoch.py", "() if shared is None else shared.acknowledged\n    why", "()\n    why"),),
        (f"{_LOST}test_a_copy_where_nothing_but_the_note_in_redis_is_left[postgres-stopped-None]",),
    ),
    Defect(
        "acknowledgements-shared-late",
        "what the store acknowledges is shared with the other notes alone, every 15 seconds",
        (
            Edit(
                "store/memory/guard.py",
                "boot_seconds()\n        self._is_unshared.set()\n",
                "boot_seconds()\n",
            ),
        ),
        ("tests/store/test_guard.py::test_what_is_acknowledged_is_shared_at_once",),
    ),
    Defect(
        "last-acknowledgements-unshared",
        "a gateway that stops in order does not share what was acknowledged last",
        (
            Edit(
                "store/memory/guard.py",
                "                    await self._share(self._shared_note)\n            await",
                "                    pass\n            await",
            ),
        ),
        ("tests/store/test_guard.py::test_what_is_acknowledged_is_shared_at_once",),
    ),
    Defect(
        "lost-is-absent",
        "a key that was in the lost memory is taken for one that was never used",
        (Edit("store/memory/epoch.py", "        if now_us >= self.until_us:\n", "        if True:\n"),),
        ("tests/store/test_guard.py::test_a_lost_memory_is_noticed",),
    ),
    Defect(
        "forgotten-key-reads-as-free",
        "who waits for what a lost memory has forgotten is told that it had no effect",
        (
            Edit(
                "store/memory/guard.py",
                "        if self.is_amnesic:\n            await self._check_known(snapshot)\n",
                "",
            ),
        ),
        (
            "tests/store/test_guard.py::test_what_may_be_forgotten_is_not_read_as_free",
            "tests/protect/test_lost_memory.py::test_a_duplicate_of_what_was_forgotten_elsewhere",
        ),
    ),
    Defect(
        "old-release-is-believed",
        "a release from before the loss frees the key although a later retry may be forgotten",
        (
            Edit(
                "store/memory/epoch.py",
                "(record.state in UNEXECUTED or record.attempt_id == attempt_id)",
                "record.attempt_id == attempt_id",
            ),
        ),
        ("tests/store/test_guard.py::test_a_release_from_before_the_loss_is_not_believed",),
    ),
    Defect(
        "requeued-again-by-a-repeat",
        "a requeue that is given again, because its answer was lost, delivers what was given up once more",
        (Edit("admin/operations.py", "before is not None and token in (None, before.token)", "False"),),
        (
            "tests/admin/test_operations.py::test_a_requeue_that_did_not_help",
            "tests/admin/test_operations.py::test_many_twice",
        ),
    ),
    Defect(
        "kept-request-lost-with-its-doubt",
        "resolved as never happened, an accepted request is dropped, although its caller was promised that it is kept",
        (
            Edit(
                "admin/resolution.py",
                "case NothingHappened(drops) if record.delivery is not None and not drops:",
                "case NothingHappened(drops) if record.delivery is not None and drops:",
            ),
        ),
        ("tests/admin/test_operations.py::test_never_happened_delivers_what_is_kept",),
    ),
    Defect(
        "bulk-requeue-without-a-rate",
        "dead letters are requeued as fast as the store takes them",
        (Edit("admin/operations.py", "due = max(due, now) + 1 / self.rate", "due = now"),),
        ("tests/admin/test_operations.py::test_many_at_a_rate",),
    ),
    Defect(
        "old-acceptance-is-delivered",
        "a request that was accepted before the loss is delivered although a delivery may be forgotten",
        (Edit("store/operations.py", "(State.RELEASED, State.ACCEPTED, State.DEAD_LETTER)", "(State.RELEASED,)"),),
        ("tests/store/test_guard.py::test_a_request_kept_before_the_loss_is_not_delivered",),
    ),
    Defect(
        "forgotten-key-is-accepted",
        "a request whose key may have been used before the loss is accepted, and delivered",
        (Edit("store/memory/guard.py", "(Claim, Accept, Dispatch, Withdraw)", "(Claim, Dispatch, Withdraw)"),),
        ("tests/store/test_guard.py::test_a_request_kept_before_the_loss_is_not_delivered",),
    ),
    Defect(
        "history-without-what-had-no-effect",
        "the next attempt hides that, and why, the one before it had no effect",
        (Edit("core/lifecycle.py", "(Accept, Release, Forget, Abandon,", "(Accept, Forget, Abandon,"),),
        ("tests/conformance/test_history.py::test_how_an_attempt_ended[sqlite]",),
    ),
    Defect(
        "history-of-probes-alone",
        "an operation that is probed for long is no more known to have been attempted",
        (Edit("core/history.py", "del entries[next(probes, FIRST)]", "del entries[FIRST]"),),
        ("tests/conformance/test_history.py::test_probes_leave_room_for_attempts[sqlite]",),
    ),
    Defect(
        "history-lost-with-a-late-answer",
        "an answer that came after the lease hides that the operation was in doubt",
        (
            Edit("store/relational/executor.py", "if granted.lease_until_us <= now_us:", "if False:"),
            Edit("store/relational/sql/update_granted.sql", "state = 'claimed' AND lease_until_us > ?", "? > 0"),
        ),
        ("tests/conformance/test_history.py::test_a_late_answer[sqlite]",),
    ),
)
