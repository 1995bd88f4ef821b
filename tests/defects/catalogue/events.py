"""Defects of events: what consumers hear of, how often, and where the gateway can be led."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

OUTBOX = "core/outbox.py"
RELAY = "events/relay.py"
EGRESS = "events/webhook.py"
_CONFORMANCE = "tests/conformance/test_events.py::"
_RELAY = "tests/events/test_relay.py::"
_WEBHOOK = "tests/events/test_webhook.py::"
_EGRESS = "tests/events/test_egress.py::"
_BROKERS = "tests/events/test_brokers.py::"

DEFECTS = (
    Defect(
        "sweeps-tell-nothing",
        "a lapse that a sweep writes down has no event",
        (
            Edit(
                "store/relational/sweep.py",
                "                changes.add_events(service, events)\n",
                "",
            ),
        ),
        (_CONFORMANCE + "test_what_the_clock_did_is_told_once_it_is_written[sqlite-False]",),
    ),
    Defect(
        "id-of-the-operation",
        "every life of a key has the same event",
        (Edit(OUTBOX, 'b"%d" % after.token, type_.encode()', 'b"", type_.encode()'),),
        (_CONFORMANCE + "test_an_event_outlives_its_operation[memory]",),
    ),
    Defect(
        "second-expiry-has-no-event",
        "a request that expires once more has the event of the first time",
        (Edit(OUTBOX, "        number = after.delivery.since_us\n", "        number = 0\n"),),
        (_CONFORMANCE + "test_what_the_clock_did_is_told_once_it_is_written[memory-False]",),
    ),
    Defect(
        "outcomes-are-derived",
        "a later program publishes another event under the same id",
        (
            Edit(OUTBOX, '            "outcome": _OUTCOMES[after.state],\n', ""),
            Edit(
                OUTBOX,
                '        if data["state"] == State.COMPLETED:\n',
                '        data["outcome"] = _OUTCOMES.get(data["state"])\n'
                '        if data["state"] == State.COMPLETED:\n',
            ),
        ),
        ("tests/core/test_outbox.py::test_what_an_event_says_is_in_its_row",),
    ),
    Defect(
        "doubt-without-end",
        "a consumer that heard of a doubt never hears that nothing had happened",
        (
            Edit(
                OUTBOX,
                "State.RELEASED if before is not None and before.state is State.IN_DOUBT:\n",
                "State.RELEASED if False:\n",
            ),
        ),
        (_CONFORMANCE + "test_a_doubt_has_an_end_where_it_was_told[sqlite]",),
    ),
    Defect(
        "given-up-silently",
        "what nobody took in time is gone",
        (
            Edit(
                RELAY,
                "                    return EventReport(*ids, EventFate.DEAD, publication.why, line=leased.line)\n"
                "                retry_after_us",
                "                    return EventReport(*ids, EventFate.PUBLISHED, line=leased.line)\n"
                "                retry_after_us",
            ),
        ),
        (_RELAY + "test_an_event_that_is_too_old_is_dead_and_listed",),
    ),
    Defect(
        "reported-before-it-is-published",
        "an event is gone from the store although its sink failed",
        (
            Edit(
                RELAY,
                "            case Delivered():\n                return",
                "            case Delivered() | Failed():\n                return",
            ),
        ),
        (_RELAY + "test_what_failed_is_published_again_by_the_schedule",),
    ),
    Defect(
        "two-of-a-line-at-once",
        "an ordered sink receives what is behind before the first has arrived",
        (Edit("store/relational/sql/lease_events.sql", "e.is_behind = FALSE AND e.due_us <= ?3", "e.due_us <= ?3"),),
        ("tests/conformance/test_ordered_events.py::test_events_of_one_operation_come_one_after_the_other[sqlite]",),
    ),
    Defect(
        "leases-keep-nothing",
        "two relays publish the same events at the same time",
        (Edit("store/relational/sql/lease_events.sql", "(e.lease_until_us <= ?3 OR ", "(TRUE OR "),),
        (_CONFORMANCE + "test_two_relays_share_what_is_due[sqlite]",),
    ),
    Defect(
        "redelivered-in-vain",
        "a late report of an earlier life buries an event that an operator had delivered again",
        (Edit("store/relational/sql/bury_event.sql", " AND redeliveries = ?5", " AND ?5 IS NOT NULL"),),
        (_CONFORMANCE + "test_a_report_from_before_a_redelivery_counts_no_more[sqlite]",),
    ),
    Defect(
        "leases-of-another-time",
        "a clock that is set back keeps leased events from their sinks for as long as it was set back",
        (Edit("store/relational/sql/lease_events.sql", " OR e.lease_until_us > ?3 + {event_lease_us_max})", ")"),),
        ("tests/conformance/test_events.py::test_a_lease_of_a_clock_that_was_set_back[sqlite]",),
    ),
    Defect(
        "one-place-for-all-sinks",
        "a sink that hangs takes the places of the others",
        (
            Edit(
                RELAY,
                "(self.settings.places - self._taken) * self.sink.batch_max",
                "self.settings.places * self.sink.batch_max",
            ),
        ),
        (_RELAY + "test_a_sink_that_hangs_delays_no_other",),
    ),
    Defect(
        "pauses-while-events-wait",
        "a sink gets a handful of events for each pause, and falls behind for ever",
        (Edit(RELAY, "        if places.is_behind:\n            self._has_room.set()\n", ""),),
        (_RELAY + "test_a_backlog_is_published_without_waiting_for_a_poll",),
    ),
    Defect(
        "lines-wait-for-polls",
        "an ordered sink gets some twenty events of a line a second",
        (Edit(RELAY, " or any(each.line is not None for each in of_sink)", ""),),
        (_RELAY + "test_a_line_is_published_without_waiting_for_a_poll",),
    ),
    Defect(
        "wakes-hurry-a-failing-store",
        "a store that fails gets a search for every change",
        (Edit(RELAY, "        if self._has_failed:\n", "        if False:\n"),),
        (_RELAY + "test_a_store_that_fails_is_left_alone_however_much_happens",),
    ),
    Defect(
        "one-result-for-a-batch",
        "an event that its sink did not take is gone with the others of its batch",
        (Edit(RELAY, "zip(publications, batch,", "zip([publications[0]] * len(batch), batch,"),),
        (_RELAY + "test_a_sink_that_takes_several_events_gets_them_at_once",),
    ),
    Defect(
        "literals-are-not-checked",
        "an address in a URL leads anywhere",
        (Edit(EGRESS, "        check_address(policy, str(target[0]))\n", ""),),
        (_EGRESS + "test_no_spelling_of_a_loopback_address_is_reached[127.0.0.1]",),
    ),
    Defect(
        "global-is-believed",
        "an address that embeds another one is taken for public",
        (Edit("core/egress.py", " or _is_within(address, _FORBIDDEN)", ""),),
        (_EGRESS + "test_an_address_that_is_not_public_is_forbidden[64:ff9b::a9fe:a9fe]",),
    ),
    Defect(
        "errors-tell-the-url",
        "the secret URL of a webhook is in the database, the log and the admin API",
        (
            Edit(
                "events/webhook.py",
                "Failed(reason(_described(error)), is_unknown=True, cause=cause)",
                'Failed(reason(f"{type(error).__name__}: {error}"), is_unknown=True, cause=cause)',
            ),
        ),
        (_WEBHOOK + "test_a_failure_of_http_does_not_tell_the_url[_garbage]",),
    ),
    Defect(
        "closed-client-stays",
        "after one error of its server a sink gets no event until the gateway is restarted",
        (Edit("events/broker.py", " or self._client is None or self._client.is_closed:", ":"),),
        (_BROKERS + "test_a_client_that_the_server_refused_once_is_replaced",),
    ),
    Defect(
        "refused-is-a-repeat",
        "an event that Redis refused is taken for one that it has",
        (
            Edit(
                "events/broker.py",
                "if redis.call('PEXPIRE', KEYS[2], ARGV[1]) == 1 then return 0 end\n",
                "if not redis.call('SET', KEYS[2], '', 'NX', 'PX', ARGV[1]) then return 0 end\n",
            ),
        ),
        (_BROKERS + "test_an_event_that_is_refused_is_not_taken_for_a_repeat",),
    ),
    Defect(
        "sinks-share-the-threads-of-callers",
        "while the name server of one sink hangs, callers with a large body wait for it",
        (
            Edit(EGRESS, "    TCPConnector,\n)\n", "    TCPConnector,\n    ThreadedResolver,\n)\n"),
            Edit(EGRESS, "resolver = Names() if", "resolver = ThreadedResolver() if"),
        ),
        (_EGRESS + "test_a_name_server_that_hangs_delays_this_sink_alone[direct]",),
    ),
    Defect(
        "lookups-given-up-free-their-place",
        "each try of a sink whose name server hangs leaves another thread behind",
        (
            Edit(
                "upstream/connect.py",
                "        return await result\n",
                "        return await self._freeing(result)\n",
            ),
            Edit(
                "upstream/connect.py",
                "    async def resolve(\n",
                "    async def _freeing(self, result: asyncio.Future[_Found]) -> _Found:\n"
                "        try:\n"
                "            return await result\n"
                "        finally:\n"
                "            self._places.release()\n\n"
                "    async def resolve(\n",
            ),
        ),
        ("tests/http/upstream/test_names.py::test_lookups_that_were_given_up_keep_their_places",),
    ),
    Defect(
        "events-of-sweeps-are-not-synced",
        "after a crash of Postgres an event that was published has another time under the same id",
        (
            Edit(
                "store/relational/sweep.py",
                "                if events and not is_synced:\n",
                "                if False:\n",
            ),
        ),
        ("tests/store/test_postgres_faults.py::test_an_event_of_a_sweep_that_was_published_outlives_a_crash[expiry]",),
    ),
    Defect(
        "events-of-sweeps-are-not-synced-in-sqlite",
        "after a power loss an event that was published has another time under the same id",
        (Edit("store/relational/sweep.py", "if events and not is_synced:", "if False:"),),
        ("tests/store/test_sqlite.py::test_a_sweep_is_synced_where_it_writes_events",),
    ),
)
