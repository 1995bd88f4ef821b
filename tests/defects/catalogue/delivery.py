"""Defects of delivery: what is sent, when, how often, and what becomes of what cannot be."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

LIFECYCLE = "core/lifecycle.py"
DELIVERY = "core/delivery.py"
OUTCOME = "core/outcome.py"
CONCLUSION = "protect/compose.py"
WORKER = "deliver/worker.py"
KEPT = "store/relational/kept.py"
_WORKER = "tests/deliver/test_worker.py::"
_KEPT = "tests/conformance/test_kept_requests.py::"
_CORE = "tests/core/test_delivery.py::"

_DOUBT_ENDS = Edit(
    OUTCOME,
    "            if carries_doubt:\n"
    "                return Outcome(Event.ABANDON, Verdict.IN_DOUBT)\n"
    "            if status",
    "            if status",
)

DEFECTS = (
    Defect(
        "resends-for-others",
        "a service sends the requests of another one again, to its own upstream and with their credentials",
        (Edit("upkeep/recovery.py", "if not is_of(record.identity, self._service, route.operation):", "if False:"),),
        (
            "tests/upkeep/test_recovery.py::test_only_the_requests_of_its_service_are_sent_again[another]",
            "tests/http/gateway/test_recovery.py::test_a_service_sends_nothing_of_another_again[sqlite]",
        ),
    ),
    Defect(
        "resends-counted-with-what-was-unsent",
        "after an outage what comes into doubt is not sent again any more",
        (Edit(DELIVERY, "counted = delivery.answers + 1", "counted = record.attempts"),),
        (_WORKER + "test_resend_after_an_outage",),
    ),
    Defect(
        "resends-uncounted",
        "what is in doubt is sent again without an end",
        (Edit(LIFECYCLE, "answers=delivery.answers + 1)", "answers=delivery.answers)"),),
        (_WORKER + "test_resend",),
    ),
    Defect(
        "resends-after-the-deadline",
        "a request that is in doubt has its effect a day after the last moment that its caller was told",
        (
            Edit(DELIVERY, "return None if from_us >= delivery.deliver_until_us else from_us", "return from_us"),
            Edit(DELIVERY, "from_us is None or now_us >= delivery_of(record).deliver_until_us", "from_us is None"),
        ),
        (_WORKER + "test_no_resend_starts_after_the_deadline",),
    ),
    Defect(
        "lapse-delivers-again",
        "a delivery whose gateway died goes back to what is due",
        (
            Edit(
                LIFECYCLE,
                "return replace(record, state=row.next, doubt=LAPSED_DOUBT, history=history)",
                "return replace(record, state=row.next if record.delivery is None else State.ACCEPTED)",
            ),
        ),
        (_WORKER + "test_a_gateway_that_dies_during_a_delivery",),
    ),
    Defect(
        "postponed-under-doubt",
        "an attempt without effect says that the attempts before it had none",
        (
            _DOUBT_ENDS,
            Edit(
                LIFECYCLE,
                '"known to have had no effect, to be sent again later", refused_under_doubt=True,',
                '"known to have had no effect, to be sent again later",',
            ),
        ),
        (_WORKER + "test_resend_that_is_answered",),
    ),
    Defect(
        "buried-under-doubt",
        "credentials that are refused now make a dead letter of what may have had its effect",
        (
            _DOUBT_ENDS,
            Edit(OUTCOME, "if carries_doubt and status in REFUSED_AT_THE_DOOR:", "if False:"),
            Edit(
                LIFECYCLE,
                '"known to have had no effect, not to be sent again by itself", refused_under_doubt=True,',
                '"known to have had no effect, not to be sent again by itself",',
            ),
        ),
        (_WORKER + "test_a_refusal_under_doubt",),
    ),
    Defect(
        "doubt-is-delivered-again",
        "a service that does not respond gets the request again, as from every job queue",
        (
            Edit(
                CONCLUSION,
                "            return Abandon(*ids, failure, resource)\n",
                "            kept = record.delivery is not None\n"
                "            unsure = Abandon(*ids, failure, resource)\n"
                "            return _undelivered(request, record, failure, head) if kept else unsure\n",
            ),
        ),
        (_WORKER + "test_nothing_is_sent_again_in_doubt[no-response]",),
    ),
    Defect(
        "place-is-kept",
        "a delivery that ended keeps its place",
        (
            Edit(
                WORKER,
                "            self._places.give_back(place, is_sent=is_sent, why=why)\n",
                "            _ = is_sent, why\n",
            ),
        ),
        (_WORKER + "test_no_more_than_places",),
    ),
    Defect(
        "dispatched-before-due",
        "an accepted operation may be claimed before its next attempt is due",
        (
            Edit(
                LIFECYCLE,
                "(delivery_of(record).is_behind or not is_due(record, now_us))",
                "delivery_of(record).is_behind",
            ),
        ),
        (_WORKER + "test_the_store_says_what_is_due",),
    ),
    Defect(
        "lane-is-passed",
        "an operation is dispatched although another one of its lane goes first",
        (
            Edit(
                LIFECYCLE,
                "(delivery_of(record).is_behind or not is_due(record, now_us))",
                "not is_due(record, now_us)",
            ),
        ),
        ("tests/conformance/test_lanes.py::test_one_after_the_other[memory]",),
    ),
    Defect(
        "next-of-lane-is-forgotten",
        "the end of the first operation of a lane leaves the next one behind for ever",
        (
            Edit(
                "store/relational/executor.py",
                "        if bool(was_behind) is not is_behind:\n",
                "        if is_behind and not was_behind:\n",
            ),
        ),
        ("tests/conformance/test_lanes.py::test_every_end_of_the_head_lets_the_next_one_go[sqlite-complete]",),
    ),
    Defect(
        "outage-counts",
        "attempts under which nothing was sent use up the limit of answers",
        (
            Edit(
                DELIVERY,
                "return _postpone(record, drawn_us(pause_us, draw), failure, is_answered=False)",
                "return _postpone(record, drawn_us(pause_us, draw), failure, is_answered=True)",
            ),
        ),
        (_CORE + "test_what_was_not_sent_never_counts", _WORKER + "test_an_outage_burns_nothing"),
    ),
    Defect(
        "half-open-for-all",
        "an upstream that may be tried again is tried with everything",
        (Edit("core/delivery.py", "return max(0, 1 - current.running)", "return None"),),
        ("tests/core/test_breaker.py::test_half_open_lets_one_through",),
    ),
    Defect(
        "half-open-until-the-response",
        "after an outage one slow request keeps all others of its service waiting",
        (Edit("protect/operation.py", "            operation.delivery.on_send()\n", "            pass\n"),),
        (_WORKER + "test_a_slow_request_after_an_outage",),
    ),
    Defect(
        "breaker-is-open-for-ever",
        "the breaker of an upstream that a reload took away is shown as open while a request from before it lasts",
        (Edit("observe/metrics.py", "return self._rule in (None, Rule.SUM)", "return True"),),
        ("tests/observe/test_metrics.py::test_a_gateway_goes_on_from_the_one_before",),
    ),
    Defect(
        "unsent-is-released",
        "a shutdown before the first byte drops what its caller was promised",
        (
            Edit(
                OUTCOME,
                "    if record.delivery is not None:\n        return Postpone",
                "    if False:\n        return Postpone",
            ),
        ),
        (_WORKER + "test_a_drain_before_the_first_byte",),
    ),
    Defect(
        "probe-drops-the-request",
        "a probe that finds nothing frees the key, and the accepted request is gone",
        (
            Edit(
                "protect/probing.py",
                "        if record.delivery is not None:\n            return Reinstate",
                "        if False:\n            return Reinstate",
            ),
        ),
        (_WORKER + "test_a_probe_that_finds_nothing",),
    ),
    Defect(
        "unreadable-is-sent",
        "what cannot be decrypted is sent all the same, as nothing",
        (Edit("protect/operation.py", "if delivery is not None and delivery.unopenable is not None:", "if False:"),),
        (_WORKER + "test_a_request_that_cannot_be_opened",),
    ),
    Defect(
        "paused-is-delivered",
        "what is accepted during a pause is delivered at once",
        (Edit(WORKER, "            or self._may_be_paused(operation)\n", ""),),
        (_WORKER + "test_a_pause",),
    ),
    Defect(
        "old-pauses-are-believed",
        "what is accepted after a pause that nobody here searched during is delivered at once",
        (Edit(WORKER, "            self._paused = None\n", ""),),
        (_WORKER + "test_a_pause_while_nothing_has_a_place",),
    ),
    Defect(
        "orphans-hide-their-name",
        "what a route may not deliver any more hides what another one with its operation name may",
        (
            Edit(
                WORKER,
                "self._delivering.only(names), limit",
                "Delivering(frozenset(), frozenset(), frozenset(route.operation for route in routes)), limit",
            ),
        ),
        (_WORKER + "test_orphans_hide_nothing",),
    ),
    Defect(
        "a-full-search-hides-others",
        "a route that has a place for whatever a search finds, and always more, stops the deliveries of other routes",
        (Edit(WORKER, "others = names - self._behind - self._crowded", "others = names - self._behind"),),
        (_WORKER + "test_a_route_with_many_places_hides_no_other",),
    ),
    Defect(
        "a-caller-counts-by-operation",
        "a caller has a limit of its own only on a route that has the name of its operation",
        (
            Edit(
                "protect/accepting.py",
                "request.route.name, request.identity.scope",
                "request.identity.operation, request.identity.scope",
            ),
        ),
        ("tests/integration/test_orphans.py::test_they_take_no_room_from_another_route[sqlite]",),
    ),
    Defect(
        "what-has-no-place-hides-its-name",
        "what waits for a service that is away hides what another route with its operation name may deliver",
        (Edit(WORKER, "self._delivering.only(names), limit", "self._delivering, limit"),),
        (_WORKER + "test_what_has_no_place_hides_nothing_of_its_name",),
    ),
    Defect(
        "routes-of-other-names-are-searched",
        "what a route accepted under an operation name that it gave up is found for the one that has the name alone",
        (Edit(KEPT, "        if route not in delivering.names\n", ""),),
        (_KEPT + "test_what_nobody_delivers_hides_nothing[sqlite-beside another one]",),
    ),
    Defect(
        "former-names-are-not-searched",
        "what a route accepted under a name that it had before is not found",
        (Edit(KEPT, "*(await cursor.together(due_of(former)))]", "*([] for _ in former)]"),),
        ("tests/conformance/test_kept_requests.py::test_what_nobody_delivers_hides_nothing[sqlite-renamed twice]",),
    ),
    Defect(
        "nothing-is-paused-at-the-start",
        "what is accepted right after a start is delivered in spite of a pause",
        (Edit(WORKER, "frozenset[str] | None = None\n", "frozenset[str] | None = frozenset()\n"),),
        (_WORKER + "test_a_pause_from_before_the_start",),
    ),
    Defect(
        "work-announced-to-nobody",
        "a pause takes seconds to reach the gateways that go on delivering",
        (
            Edit(
                "store/postgres/news.py",
                "if operation_id == WORK or operation_id in self._interests:",
                "if operation_id in self._interests:",
            ),
        ),
        ("tests/deliver/test_news.py::test_a_pause_and_its_end",),
    ),
    Defect(
        "pending-bytes-uncounted",
        "a few callers with long requests fill the disk of the store",
        (
            Edit(
                "protect/accepting.py",
                "if bytes_of_route.total + request.taken.length > policy.settings.max_pending_bytes:",
                "if False:",
            ),
        ),
        ("tests/http/gateway/test_accept.py::test_many_bytes_take_nothing_new",),
    ),
    Defect(
        "deliveries-under-another-id",
        "a service that knows events by the sender's id takes a delivery that the gateway signed for another event",
        (Edit("core/webhook.py", "event_id=next(iter(signed_ids), event_id)", "event_id=event_id"),),
        ("tests/core/test_inbox.py::test_the_gateway_signs_what_nobody_else_can[standard_webhooks]",),
    ),
)
