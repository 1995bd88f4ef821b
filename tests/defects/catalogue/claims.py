"""Defects of claims, leases and fences: who may execute, until when, and whose word counts."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

LIFECYCLE = "core/lifecycle.py"
CLAIMING = "protect/claiming.py"
LEASES = "protect/claiming.py"
_IS_HOLDER = "return record.token == command.token and is_attempt"
_FENCES = "tests/conformance/test_fences.py::"
_CLAIMING = "tests/protect/test_claiming.py::"

DEFECTS = (
    Defect(
        "sent-not-marked",
        "an attempt is marked before its claim, and not when it sends",
        (Edit("protect/operation.py", "        self._marks.mark_sent(operation.place)\n", ""),),
        ("tests/integration/test_processes.py::test_killed_while_it_waits_for_the_upstream[sqlite]",),
    ),
    Defect(
        "marks-end-before-their-claims",
        "a gateway that is killed in the last seconds of its drain leaves a doubt about what it never sent",
        (
            Edit(
                "protect/operation.py",
                "                if operation.stage is _SETTLED:\n"
                "                    self._marks.unmark(operation.place)\n",
                "                self._marks.unmark(operation.place)\n",
            ),
        ),
        ("tests/protect/test_drain.py::test_what_was_not_sent_stays_marked_until_its_claim_has_ended[not-ended]",),
    ),
    Defect(
        "pursued-claims-are-not-marked",
        "a claim that nobody will use comes into doubt when its gateway ends before the store is back",
        (Edit("protect/claiming.py", "place = NO_PLACE if is_executed else", "place = NO_PLACE if True else"),),
        ("tests/protect/test_drain.py::test_in_the_pursuit_of_a_claim",),
    ),
    Defect(
        "marks-of-another-boot",
        "the marks of a machine that went down are believed",
        (
            Edit(
                "store/attempt_files.py",
                ' or content[:_BOOT_BYTES].rstrip(b"\\0") != self._boot:',
                ":",
            ),
        ),
        ("tests/store/test_attempt_files.py::test_marks_of_another_boot_prove_nothing",),
    ),
    Defect(
        "older-copy-of-marks",
        "what had not been sent is read from an older copy of the marks, in the same boot",
        (Edit("store/attempt_files.py", "changed_ns <= marked_ns + _NOTED_WITHIN_NS and ", ""),),
        ("tests/store/test_attempt_files.py::test_an_older_copy_that_is_put_back_proves_nothing",),
    ),
    Defect(
        "marks-by-the-wall-clock",
        "where the host's clock was set back, the marks of ended workers are not believed",
        (Edit("store/attempt_files.py", "partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)", "time.time_ns"),),
        ("tests/store/test_attempt_files.py::test_a_host_whose_clock_was_set_back_hides_no_mark",),
    ),
    Defect(
        "leases-of-a-clock-that-was-set-back",
        "the lease of a dead holder lasts for as long as the store's clock was set back",
        (
            Edit(
                "core/lifecycle.py",
                "if settled is None or settled.lease_until_us <= now_us + settled.lease_us:",
                "if settled is None or settled.lease_until_us >= 0:",
            ),
        ),
        ("tests/conformance/test_set_back.py::test_the_key_of_a_dead_holder[sqlite-a day]",),
    ),
    Defect(
        "pauses-of-a-clock-that-was-set-back",
        "what was accepted before the store's clock was set back is delivered by that time alone",
        (
            Edit(
                "core/lifecycle.py",
                " or max(kept.since_us, record.claimed_us) > now_us + STEP_US",
                "",
            ),
        ),
        ("tests/conformance/test_set_back.py::test_what_waits_for_its_delivery[sqlite-a day]",),
    ),
    Defect(
        "limits-outlive-their-steps",
        "an attempt is cut off by the limit of a step that has ended long before",
        (Edit("protect/scheduling.py", "        self.limits.due.pop(self, None)\n", ""),),
        ("tests/protect/test_limits.py::test_what_comes_after_a_step_is_not_cut_off",),
    ),
    Defect(
        "look-up-then-insert",
        "a claim looks whether the key is free, and then writes whatever is there by then",
        (
            Edit(
                CLAIMING,
                "            admission = await self._apply(identity.operation_id, command, route, until)\n"
                "            if isinst",
                "            found = await self.store.read(identity.operation_id)\n"
                "            is_free = found.record is None or read_token is not None\n"
                "            admission = Seen(found)\n"
                "            if is_free:\n"
                "                admission = await self._apply(identity.operation_id, command, route, until)\n"
                "            if isinst",
            ),
            Edit(
                LIFECYCLE,
                "    if record is None:\n        row = ROWS.get((_ABSENT, event))",
                "    if isinstance(command, Claim) and command.read_token is None:\n"
                "        record = None\n"
                "    if record is None:\n        row = ROWS.get((_ABSENT, event))",
            ),
        ),
        (_CLAIMING + "test_two_claims_that_cross_on_their_way_have_one_grant",),
    ),
    Defect(
        "no-fence-on-complete",
        "a completion counts whoever says it",
        (
            Edit(
                LIFECYCLE,
                "Row((_S.CLAIMED,), _E.COMPLETE, _S.COMPLETED, _F.HOLDER,",
                "Row((_S.CLAIMED,), _E.COMPLETE, _S.COMPLETED, _F.OPERATOR,",
            ),
            Edit(
                LIFECYCLE,
                "Row((_S.IN_DOUBT,), _E.COMPLETE, _S.COMPLETED, _F.HOLDER,",
                "Row((_S.IN_DOUBT,), _E.COMPLETE, _S.COMPLETED, _F.OPERATOR,",
            ),
        ),
        (_FENCES + "test_a_superseded_holder_changes_nothing[sqlite-complete]",),
    ),
    Defect(
        "token-ignored",
        "a holder is known by its attempt alone",
        (Edit(LIFECYCLE, _IS_HOLDER, "return record.attempt_id == command.attempt_id"),),
        (_FENCES + "test_both_halves_of_the_fence_count[sqlite-complete-token]",),
    ),
    Defect(
        "attempt-id-ignored",
        "a holder is known by its token alone",
        (Edit(LIFECYCLE, _IS_HOLDER, "return record.token == command.token"),),
        (_FENCES + "test_both_halves_of_the_fence_count[sqlite-complete-attempt]",),
    ),
    Defect(
        "takeover-not-fenced",
        "whoever once read that the operation is in doubt may take it over",
        (
            Edit(
                LIFECYCLE,
                "Row((_S.IN_DOUBT,), _E.TAKEOVER, _S.CLAIMED, _F.READ_TOKEN,",
                "Row((_S.IN_DOUBT,), _E.TAKEOVER, _S.CLAIMED, _F.OPERATOR,",
            ),
        ),
        (_FENCES + "test_what_was_read_of_an_earlier_doubt_does_not_count[sqlite-takeover]",),
    ),
    Defect(
        "retry-of-another-request",
        "the store lets a different request claim a released key",
        (
            Edit(
                LIFECYCLE,
                "record.fingerprint is None or record.fingerprint.equals",
                "True or record.fingerprint.equals",
            ),
        ),
        (_FENCES + "test_a_released_key_is_for_the_same_request[sqlite]",),
    ),
    Defect(
        "retention-as-lease",
        "a claim is exclusive for as long as the key is remembered",
        (
            Edit(
                CLAIMING,
                "                fingerprint,\n                self.lease_us,\n",
                "                fingerprint,\n                route.retention.remember_us,\n",
            ),
        ),
        (_CLAIMING + "test_close_gives_pursuits_up",),
    ),
    Defect(
        "lease-never-lapses",
        "a dead holder keeps its key for ever",
        (
            Edit(
                LIFECYCLE,
                "is not None and due(record) <= now_us:",
                "is not None and due(record) <= now_us and not record.lease_until_us:",
            ),
        ),
        ("tests/core/test_lifecycle.py::test_a_lease_ends_at_its_moment", _CLAIMING + "test_close_gives_pursuits_up"),
    ),
    Defect(
        "lapsed-means-free",
        "a key whose holder is silent may be claimed by the next",
        (
            Edit(
                LIFECYCLE,
                'Row((_S.CLAIMED,), _E.LAPSE, _S.IN_DOUBT, _F.CLOCK, "the holder died or was cut off"),',
                'Row((_S.CLAIMED,), _E.LAPSE, _S.ABSENT, _F.CLOCK, "the holder died or was cut off"),',
            ),
        ),
        (_CLAIMING + "test_close_gives_pursuits_up",),
    ),
    Defect(
        "lost-claim-wedges",
        "a claim that was given up without an answer is nobody's to end",
        (
            Edit(
                CLAIMING,
                "        self._pursue(operation_id, command, remember_us, is_executed=is_executed)\n",
                "",
            ),
        ),
        (_CLAIMING + "test_a_claim_given_up_is_ended",),
    ),
    Defect(
        "cancelled-claim-wedges",
        "a claim whose caller was cancelled on the way is nobody's to end",
        (
            Edit(
                CLAIMING,
                "            self._pursue(operation_id, command, remember_us)\n            raise",
                "            raise",
            ),
        ),
        (_CLAIMING + "test_a_cancelled_claim_is_released",),
    ),
    Defect(
        "new-attempt-for-each-try",
        "a claim whose answer was lost is said again as another attempt, and refuses itself",
        (
            Edit(
                CLAIMING,
                "result = await self.store.apply(command)\n                    except Indefinite",
                "result = await self.store.apply(replace(command, attempt_id=_new_attempt_id()))\n"
                "                    except Indefinite",
            ),
        ),
        (_CLAIMING + "test_a_lost_answer_is_asked_for_again",),
    ),
    Defect(
        "renewal-trusted-from-its-end",
        "what remains of a lease is counted from when the answer came",
        (
            Edit(
                LEASES, "self._apply_result(lease, result, started)", "self._apply_result(lease, result, self.clock())"
            ),
        ),
        ("tests/protect/test_leases.py::test_a_slow_renewal_stretches_no_lease",),
    ),
    Defect(
        "claim-trusted-from-its-end",
        "the first lease is counted from when the answer to the claim came",
        (Edit(CLAIMING, "return Granted(record, now_us, started,", "return Granted(record, now_us, self.clock(),"),),
        (_CLAIMING + "test_a_grant_counts_from_before_its_call",),
    ),
    Defect(
        "failed-renewal-trusted",
        "not renewed because of an error is taken for still held",
        (
            Edit(
                LEASES,
                "        except StoreError:\n            return\n",
                "        except StoreError:\n"
                "            lease.trusted_until_seconds += self.lease_seconds\n"
                "            return\n",
            ),
        ),
        ("tests/protect/test_leases.py::test_an_error_renews_nothing_and_ends_nothing",),
    ),
    Defect(
        "no-renewal",
        "the lease of a slow operation is never renewed",
        (Edit(LEASES, "if lease.renew_at_seconds <= now and not lease.is_renewing:", "if False:"),),
        ("tests/protect/test_leases.py::test_a_slow_operation_keeps_its_lease",),
    ),
    Defect(
        "stalled-loop-claims",
        "a gateway whose loop was stuck goes on claiming at once",
        (
            Edit(
                LEASES,
                "self.stalled_from_seconds = now + self.lease_seconds / 3",
                "self.stalled_from_seconds = float('inf')",
            ),
        ),
        ("tests/protect/test_leases.py::test_a_stalled_loop_claims_nothing",),
    ),
    Defect(
        "lease-not-asked-before-sending",
        "the first byte goes out whether or not the lease is still trusted",
        (Edit("protect/operation.py", "if lease.clock() >= lease.trusted_until_seconds:", "if False:"),),
        ("tests/protect/test_coordinator.py::test_a_lease_that_is_over_before_the_first_byte",),
    ),
    Defect(
        "leases-by-the-wall-clock",
        "what a lease is trusted by jumps with the host's clock",
        (Edit("store/base.py", "partial(time.clock_gettime, time.CLOCK_BOOTTIME)", "lambda: time.time()"),),
        ("tests/http/gateway/test_clocks.py::test_a_stores_clock_runs_nothing_again[forward]",),
    ),
)
