"""Defects of one attempt: what is made of its outcome, when it is recorded, and who is told what."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

ATTEMPT = "protect/operation.py"
COORDINATOR = "protect/coordinator.py"
DUPLICATES = "protect/duplicates.py"
OUTCOME = "core/outcome.py"
_OUTCOMES = "tests/http/gateway/test_outcomes.py::"
_VERDICTS = "tests/http/gateway/test_verdicts.py::"
_FAULTS = "tests/http/gateway/test_store_faults.py::"
_KNOWN = "tests/store/test_postgres_faults.py::"
_DRAIN = "tests/http/gateway/test_drain.py::"

DEFECTS = (
    Defect(
        "recorded-after-the-answer",
        "the client has its answer before the store has it",
        (
            Edit(
                ATTEMPT,
                "        pause, is_late = _PAUSE_SECONDS_MIN, False\n",
                "        pause, is_late = _PAUSE_SECONDS_MIN, False\n"
                "        operation.publish(replace(conclusion, others=conclusion.reply))\n",
            ),
        ),
        (_FAULTS + "test_nobody_is_answered_before_the_store_has_it",),
    ),
    Defect(
        "unrecorded-is-told",
        "an outcome that nothing durable took is told as known",
        (
            Edit(
                ATTEMPT,
                "        except StoreError:\n            return False\n",
                "        except StoreError:\n            operation.publish(conclusion)\n            return True\n",
            ),
        ),
        ("tests/protect/test_coordinator.py::test_an_outcome_that_nothing_durable_takes",),
    ),
    Defect(
        "completion-said-once",
        "a completion whose answer was lost is not said again",
        (
            Edit(
                ATTEMPT,
                "            except (StoreError, TimeoutError):\n                is_late = True\n",
                "            except (StoreError, TimeoutError):\n                is_late = True\n"
                "                self.final_command = None\n"
                "                self._publish_unrecorded(conclusion)\n"
                "                return\n",
            ),
        ),
        ("tests/protect/test_coordinator.py::test_a_lost_answer_to_an_outcome",),
    ),
    Defect(
        "refused-write-is-told",
        "a holder whose write was refused gives its client its own answer all the same",
        (
            Edit(
                ATTEMPT,
                "        abort_stream(conclusion.reply)\n        conclusion.reply = reply_by_record(",
                "        return\n        conclusion.reply = reply_by_record(",
            ),
        ),
        (_FAULTS + "test_a_superseded_holder_tells_what_the_record_says",),
    ),
    Defect(
        "lost-is-released",
        "a connection that ended before the answer frees the key",
        (
            Edit(
                OUTCOME,
                'came."""\n    return Outcome(Event.ABANDON, Verdict.IN_DOUBT)',
                'came."""\n    return Outcome(Event.RELEASE, Verdict.UPSTREAM_UNREACHABLE)',
            ),
        ),
        (
            "tests/core/test_outcome.py::test_unknown_is_never_anything_else",
            _OUTCOMES + "test_no_complete_response[sqlite-close]",
        ),
    ),
    Defect(
        "timeout-is-released",
        "an upstream that did not answer in time frees the key",
        (
            Edit(
                "protect/conclusion.py",
                "    outcome = conclude_unknown()\n",
                "    outcome = conclude_unknown()\n"
                "    if reason is Unknown.TIMEOUT:\n"
                "        outcome = conclude_not_sent(carries_doubt=False)\n",
            ),
        ),
        (_OUTCOMES + "test_silence_is_never_nothing[sqlite]",),
    ),
    Defect(
        "truncation-is-released",
        "an answer that broke off frees the key",
        (
            Edit(
                "protect/conclusion.py",
                "    outcome = conclude_unknown()\n",
                "    outcome = conclude_unknown()\n"
                "    if head is not None:\n"
                "        outcome = conclude_not_sent(carries_doubt=False)\n",
            ),
        ),
        (_OUTCOMES + "test_no_complete_response[sqlite-body-reset]",),
    ),
    Defect(
        "not-sent-is-doubt",
        "a refused connection puts the key in doubt",
        (
            Edit(
                ATTEMPT,
                "conclusion = not_sent(request, record, reason, detail)",
                "conclusion = unknown(request, record, next(iter(Unknown)), detail, 0.0)",
            ),
            Edit(
                ATTEMPT,
                "NotSent, SentNothing, TooLong, UpstreamResponse\n",
                "NotSent, SentNothing, TooLong, Unknown, UpstreamResponse\n",
            ),
        ),
        (_OUTCOMES + "test_nothing_sent[sqlite]",),
    ),
    Defect(
        "door-settles-the-key",
        "401 is a final answer, so that a stranger uses up the key",
        (Edit(OUTCOME, "    if status in REFUSED_AT_THE_DOOR:\n        return Meaning.RETRYABLE\n", ""),),
        (_OUTCOMES + "test_a_stranger_poisons_nothing[sqlite-401]",),
    ),
    Defect(
        "door-keeps-the-fingerprint",
        "after a stranger's 401 the key is for the stranger's request only",
        (
            Edit(
                OUTCOME,
                "return Outcome(Event.FORGET, Verdict.RELEASED)",
                "return Outcome(Event.RELEASE, Verdict.RELEASED)",
            ),
        ),
        (_OUTCOMES + "test_a_stranger_poisons_nothing[sqlite-401]",),
    ),
    Defect(
        "any-401-forgets",
        "a 401 of a later attempt frees the owner's key for others",
        (Edit(OUTCOME, "if status in REFUSED_AT_THE_DOOR and is_first_attempt:", "if status in REFUSED_AT_THE_DOOR:"),),
        (_OUTCOMES + "test_later_attempt_at_the_door_keeps_the_fingerprint[sqlite]",),
    ),
    Defect(
        "payments-5xx-final",
        "a 5xx of a payment service is recorded as its answer",
        (
            Edit(
                OUTCOME,
                "        return Meaning.RETRYABLE\n    return Meaning.IN_DOUBT\n\n\ndef conclude_answered",
                "        return Meaning.RETRYABLE\n    return Meaning.FINAL\n\n\ndef conclude_answered",
            ),
        ),
        ("tests/core/test_outcome.py::test_every_status_by_preset[payments]",),
    ),
    Defect(
        "payments-5xx-retryable",
        "a 500 of a payment service frees the key",
        (Edit(OUTCOME, "if status in (500, 503) and preset is not Preset.PAYMENTS:", "if status in (500, 503):"),),
        (_OUTCOMES + "test_complete_response[sqlite-payments-500-in-doubt]",),
    ),
    Defect(
        "waiter-claims",
        "whoever waited for a request that was released executes its own",
        (
            Edit(
                DUPLICATES,
                "                if latest is not None:\n",
                '                if latest is not None and latest.state == "released":\n'
                "                    return None\n"
                "                if latest is not None:\n",
            ),
        ),
        (_OUTCOMES + "test_waiters_of_a_failing_request_do_not_run_it[sqlite]",),
    ),
    Defect(
        "waiters-share-a-401",
        "what a stranger was told at the door is told to those who waited",
        (
            Edit(
                "protect/conclusion.py",
                "outcome.event in (Event.RELEASE, Event.ABANDON):",
                "outcome.event in (Event.RELEASE, Event.ABANDON, Event.FORGET):",
            ),
        ),
        (_OUTCOMES + "test_waiters_of_a_forgotten_request_share_nothing[sqlite]",),
    ),
    Defect(
        "waiters-unbounded",
        "any number of duplicates may wait",
        (Edit(DUPLICATES, "self.waiters_on[route.name] >= route.in_flight.max_waiters", "False"),),
        (_VERDICTS + "test_waiters_are_bounded[sqlite]",),
    ),
    Defect(
        "memory-outlives-its-lease",
        "how an attempt ended is told from memory when others may have gone on without it",
        (
            Edit(
                DUPLICATES,
                "if result is None or not result.is_recorded:",
                "if result is None:",
            ),
        ),
        ("tests/protect/test_coordinator.py::test_how_it_ended_while_the_store_was_away[after-its-lease-lost]",),
    ),
    Defect(
        "store-down-forwards",
        "without the durable store requests are forwarded unprotected, on every route",
        (
            Edit(
                COORDINATOR,
                "may_forward = request.route.forwards_unprotected and operation.request.route.forwards_unprotected",
                "may_forward = True",
            ),
        ),
        (_VERDICTS + "test_rule_8_store_unavailable[sqlite-refuse]",),
    ),
    Defect(
        "refused-forwards",
        "what the store refuses is forwarded unprotected, on a route that may do without a store",
        (Edit(COORDINATOR, "if may_forward and not admission.is_refused:", "if may_forward:"),),
        ("tests/protect/test_coordinator.py::test_what_a_store_refuses_is_forwarded_nowhere[rejected]",),
    ),
    Defect(
        "known-key-is-no-refusal",
        "a key whose answer cannot be read passes for one on a store that is away, and is forwarded unprotected",
        (
            Edit(
                "store/postgres/executor.py",
                'raise Unreadable(f"the key is known, and its record cannot be read: {error}") from error',
                "raise NotApplied(*error.args) from error",
            ),
        ),
        (_KNOWN + "test_a_known_key_is_not_free_for_want_of_its_answer[refuse]",),
    ),
    Defect(
        "known-key-is-cut-off",
        "a key whose answer is being read when patience ends is forwarded unprotected",
        (Edit("store/postgres/executor.py", "raise asyncio.CancelledError(KNOWN) from cancelled", "raise"),),
        (_KNOWN + "test_a_known_key_is_not_free_for_want_of_its_answer[swallow]",),
    ),
    Defect(
        "no-body-is-an-empty-body",
        "a record whose answer was not kept is replayed as an empty answer",
        (
            Edit(
                "core/verdict.py",
                "if is_fetched or response is None or response.body is None:",
                "if is_fetched or response is None:",
            ),
        ),
        ("tests/core/test_verdict.py::test_completed_without_its_body",),
    ),
    Defect(
        "fetch-executes",
        "a header of the caller's makes a write of what is only to be read",
        (Edit("protect/forwarding.py", '(*DEFINING, b"digest",', '(b"digest",'),),
        ("tests/http/test_forwarding.py::test_a_fetch_is_only_a_fetch",),
    ),
    Defect(
        "reference-leaves-its-segment",
        "what a service calls what it made leads to another path",
        (Edit("core/replay.py", "escaped(resource.encode())", "resource.encode()"),),
        ("tests/core/test_reading.py::test_a_reference_stays_where_it_is_put",),
    ),
    Defect(
        "fetch-at-a-foreign-host",
        "a path of another host is asked for here",
        (Edit("core/replay.py", "if not authority or _normal(authority, scheme) not in known:", "if not authority:"),),
        ("tests/core/test_reading.py::test_an_address_is_of_the_service",),
    ),
    Defect(
        "drain-forgets",
        "what a shutdown could not finish is left to lapse, with nothing said of it",
        (
            Edit(
                "protect/operation.py",
                "if operation.final_command is not None\n        ]",
                "if False\n        ]",
            ),
        ),
        (_DRAIN + "test_what_outlives_the_drain_is_said_to_be_in_doubt[sqlite]",),
    ),
    Defect(
        "drain-releases",
        "what a shutdown could not finish is freed",
        (
            Edit(
                "protect/operation.py",
                "        if self.has_sent:\n",
                "        if False:\n",
            ),
        ),
        ("tests/protect/test_drain.py::test_in_the_exchange",),
    ),
    Defect(
        "books-do-not-balance",
        "replays are told to no observer",
        (
            Edit(
                COORDINATOR,
                "reply.verdict is not None and not request.is_reported_there:",
                "reply.verdict not in (None, Verdict.REPLAYED):",
            ),
        ),
        ("tests/observe/test_whole.py::test_the_books_balance",),
    ),
)
