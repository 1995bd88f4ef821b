"""Defects of acceptance: what is kept, who may see it, and what its callers are told."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

ACCEPTING = "protect/accepting.py"
RESOURCE = "protect/resource.py"
STATUS = "protect/compose.py"
_ACCEPT = "tests/http/gateway/test_accept.py::"
_STATUS = "tests/http/gateway/test_status.py::"
_KEPT = "tests/protect/test_kept.py::"

DEFECTS = (
    Defect(
        "kept-in-clear",
        "requests are stored as they came",
        (
            Edit(
                "core/sealing.py",
                "nonce + self._cipher(key_id, associated[:OWNER_BYTES]).encrypt(nonce, content, associated)",
                "nonce + content",
            ),
        ),
        (_ACCEPT + "test_nothing_of_a_kept_request_is_readable_in_the_store",),
    ),
    Defect(
        "kept-request-can-be-moved",
        "a kept request opens in the row of another operation",
        (Edit("core/confidential.py", "return operation_id.bytes + acceptance_id.bytes", 'return b""'),),
        (_KEPT + "test_what_was_changed_or_moved_is_refused",),
    ),
    Defect(
        "accepted-without-a-commit",
        "202 although nobody knows whether the store has the request",
        (
            Edit(
                ACCEPTING,
                "                    is_lost = True\n",
                "                    is_lost = True\n"
                "                    if isinstance(command, Accept):\n"
                "                        from gateway.core.lifecycle import step\n"
                "                        return step(None, command, 0, lambda: 1)[0]\n",
            ),
        ),
        (_ACCEPT + "test_an_acceptance_that_nobody_heard_of_is_found_by_its_repeat",),
    ),
    Defect(
        "lost-acceptance-is-given-up",
        "an acceptance whose acknowledgement was lost is not asked for again",
        (Edit(ACCEPTING, "                    is_lost = True\n", "                    raise\n"),),
        (_ACCEPT + "test_a_lost_acknowledgement_is_asked_for_again",),
    ),
    Defect(
        "preconditions-are-kept-for-later",
        "a request is delivered later although it has a meaning only now",
        (Edit("protect/forwarding.py", "not _ONLY_NOW.isdisjoint(by_name)", "False"),),
        (_ACCEPT + "test_who_is_accepted",),
    ),
    Defect(
        "backlog-without-bound",
        "however much waits, more is stored",
        (Edit(ACCEPTING, "if not await self._pending.has_room(request, policy):", "if False:"),),
        (_ACCEPT + "test_a_full_backlog_takes_nothing_new",),
    ),
    Defect(
        "old-count-is-new",
        "beyond a thousand that wait on Postgres, more is stored than may be, for as long as a count is used",
        (
            Edit(
                ACCEPTING,
                "self._added_before(started - self._backlog.age_seconds, (started, added))",
                "added",
            ),
        ),
        (_ACCEPT + "test_an_old_count_takes_no_more_than_a_new_one[max_pending]",),
    ),
    Defect(
        "backlog-refuses-what-is-kept",
        "a repeat of what was accepted is refused because much waits",
        (
            Edit(
                ACCEPTING,
                "return refusal if isinstance(request.judge(snapshot), Claimable) else Seen(snapshot)",
                "return refusal",
            ),
        ),
        (_ACCEPT + "test_a_full_backlog_takes_nothing_new",),
    ),
    Defect(
        "requeued-by-every-repeat",
        "each repeat of a dead letter delivers it again",
        (
            Edit(
                ACCEPTING,
                " or snapshot.now_us < record.delivery.since_us + policy.requeue_after_us:",
                ":",
            ),
        ),
        (_ACCEPT + "test_a_dead_letter_is_requeued_by_a_repeat_where_the_route_says_so",),
    ),
    Defect(
        "status-for-everybody",
        "whoever knows an id sees the operation",
        (
            Edit(
                RESOURCE,
                "isinstance(caller, Caller) and is_in_scope(",
                "isinstance(caller, Caller) or is_in_scope(",
            ),
        ),
        (_STATUS + "test_nobody_else_sees_it",),
    ),
    Defect(
        "unreadable-is-unknown",
        "while the store is away, nothing was ever accepted",
        (
            Edit(
                RESOURCE,
                "            return refuse(Verdict.STORE_UNAVAILABLE, shape=self._shape)\n",
                "            return _NOT_FOUND\n",
            ),
        ),
        (_STATUS + "test_what_cannot_be_read_is_not_absent",),
    ),
    Defect(
        "tag-without-the-clock",
        "a status that the clock changed has the tag that it had",
        (Edit(STATUS, "-{record.last_event}-{record.state}", "-{record.last_event}"),),
        (_STATUS + "test_what_did_not_change_is_not_sent_again",),
    ),
    Defect(
        "withdrawn-is-released",
        "a caller that waits is told to repeat what was called off",
        (
            Edit(
                "protect/compose.py",
                "case Claimable() if free_verdict is Verdict.RELEASED and snapshot.record and is_withdrawn",
                "case Claimable() if False and snapshot.record and is_withdrawn",
            ),
        ),
        (_ACCEPT + "test_a_caller_that_waits_while_it_is_called_off",),
    ),
)
