"""Defects of what one gateway does for all: whose turn it is, partitions ahead of need, notes, connections."""

from __future__ import annotations

from typing import Final

from tests.defects.defect import Defect, Edit

_DAYS: Final = "tests/store/test_postgres_days.py::"
_TURN: Final = "store/relational/sql/take_turns.sql"
_TURNS: Final = "upkeep/timer.py"
_UNIT: Final = "tests/upkeep/test_turns.py::"
_CONTRACT: Final = "tests/conformance/test_turns.py::"
_LOOKED_AT: Final = (
    "tests/conformance/test_witness.py::test_a_store_that_lacks_what_it_acknowledged_can_be_looked_at[postgres]"
)
_APP: Final = "tests/app/test_upkeep.py::"
_ACTIVITY: Final = "upkeep/activity.py"
_PICTURES: Final = "tests/upkeep/test_activity.py::"

DEFECTS: Final = (
    Defect(
        "days-of-ones-own-windows",
        "responses of other gateways wait for their partitions",
        (
            Edit(
                "store/postgres/sql/schema.sql", "coalesce(max(g.replay_us), 0) AS", "coalesce(min(g.replay_us), 0) AS"
            ),
        ),
        (_DAYS + "test_no_partition_is_late_at_midnight",),
    ),
    Defect(
        "changed-window-not-said",
        "a start that changes nothing but a window makes no room for it",
        (Edit("store/postgres/store.py", "slow.link, serving.replay_us)", "slow.link, 0)"),),
        (_DAYS + "test_a_start_makes_room_for_its_window",),
    ),
    Defect(
        "declared-window-forgotten",
        "a window that a response declared makes one wait on each day",
        (Edit("store/postgres/member.py", "gateway_id.bytes, self._days.longest_us\n", "gateway_id.bytes, 0\n"),),
        (_DAYS + "test_no_completion_makes_room",),
    ),
    Defect(
        "late-partition-not-counted",
        "nobody sees that responses waited for their partition",
        (Edit("store/postgres/days.py", "        self.late += 1\n", ""),),
        (_DAYS + "test_no_completion_makes_room",),
    ),
    Defect(
        "turn-taken-from-the-living",
        "whoever asks has the turn, and every gateway sweeps",
        (Edit(_TURN, "t.name = n.value", "FALSE"),),
        (_CONTRACT + "test_a_turn_is_of_one_gateway[sqlite]",),
    ),
    Defect(
        "turn-of-the-dead-stays",
        "nobody takes over from a gateway that died",
        (Edit(_TURN, "t.until_us > ?4 AND ", "?4 IS NOT NULL AND "),),
        (_CONTRACT + "test_a_turn_ends_with_its_lease[sqlite]",),
    ),
    Defect(
        "turn-of-the-future-stays",
        "where the clock was set back, nobody does anything until it has caught up",
        (Edit(_TURN, " AND t.until_us <= ?3", ""),),
        (_CONTRACT + "test_a_turn_of_a_clock_that_was_set_back[sqlite]",),
    ),
    Defect(
        "turn-left-is-anybodys",
        "a gateway that stops takes the turns of all others with it",
        (Edit("store/relational/sql/delete_turns.sql", "holder = ?1", "holder >= ?1 OR holder < ?1"),),
        (_CONTRACT + "test_a_turn_that_is_left_is_free_at_once[sqlite]",),
    ),
    Defect(
        "slow-answer-makes-a-turn-longer",
        "a turn is believed for longer than the store leased it",
        (
            Edit(
                _TURNS,
                "dict.fromkeys(taken, asked + LEASE_SECONDS)",
                "dict.fromkeys(taken, self._clock() + LEASE_SECONDS)",
            ),
        ),
        (_UNIT + "test_a_slow_answer_makes_no_turn_longer",),
    ),
    Defect(
        "frozen-and-still-in-charge",
        "a gateway that was frozen goes on as if its turn had not ended",
        (Edit(_TURNS, "self._clock() < self._until.get(name, 0.0)", "name in self._until"),),
        (_UNIT + "test_whoever_was_frozen_has_no_turn_when_it_goes_on",),
    ),
    Defect(
        "turn-kept-after-the-stop",
        "after a clean stop nobody does anything until the lease is over",
        (Edit(_TURNS, "await self._store.leave_turns(self._holder)", "pass"),),
        (_UNIT + "test_a_stop_leaves_the_turn",),
    ),
    Defect(
        "everybody-sweeps",
        "each gateway sweeps, whoever has the turn",
        (Edit("app/parts.py", "has_turn=partial(turns.has, Duty.SWEEP)", "has_turn=lambda: True"),),
        (_APP + "test_a_gateway_alone_has_all_turns",),
    ),
    Defect(
        "one-recovers-for-other-routes",
        "operations of routes that the one in charge does not have are never recovered",
        (Edit("app/parts.py", "{config.service} {_digest_of(recovered)}", "{config.service}"),),
        (_APP + "test_gateways_with_other_routes_have_other_turns",),
    ),
    Defect(
        "tally-outlives-its-turn",
        "what a gateway counted last stands beside what another one counts now",
        (Edit("upkeep/tally.py", "            self._take_back()\n", ""),),
        (_UNIT + "test_whoever_counts_no_more_reports_nothing",),
    ),
    Defect(
        "notes-of-the-one-in-charge-alone",
        "a gateway without a turn never hears of a lost memory, nor that it was accepted",
        (
            Edit(
                "app/parts.py",
                "            repeat(self._exchange_notes, pause_seconds=_NOTES_SECONDS, "
                "sleep=self._sleep_between_notes),\n",
                "",
            ),
        ),
        ("tests/integration/test_turns.py::test_every_gateway_hears_of_a_lost_memory_and_that_it_is_accepted",),
    ),
    Defect(
        "notes-before-they-are-judged",
        "a start over an older store fails when it compares the configuration, for ever, and never declares the loss",
        (
            Edit(
                "store/postgres/store.py",
                "idle_seconds=_IDLE_SECONDS, compares_notes=False",
                "idle_seconds=_IDLE_SECONDS",
            ),
        ),
        (_LOOKED_AT,),
    ),
    Defect(
        "tally-before-notes-are-judged",
        "likewise, when it counts what is encrypted",
        (Edit("store/postgres/store.py", ", compares_notes=False)", ")"),),
        (_LOOKED_AT,),
    ),
    Defect(
        "notes-over-a-witnessed-link",
        "votes and looks at the memory go over a link that notes what it is told, before the memory was judged",
        (Edit("store/postgres/store.py", "return self._started().plain.link", "return self._started().links[0]"),),
        (_LOOKED_AT,),
    ),
    Defect(
        "idle-connections-stay",
        "each gateway keeps a connection that it does not need",
        (Edit("store/postgres/connection.py", "if self._idle_seconds is None:", "if True:"),),
        ("tests/store/test_postgres.py::test_a_store_has_few_connections[3]",),
    ),
    Defect(
        "connections-as-always",
        "a gateway opens as many connections as it likes",
        (Edit("app/stores.py", "                connections=config.store.connections,\n", ""),),
        ("tests/store/test_postgres.py::test_how_many_connections_a_gateway_has[2]",),
    ),
    Defect(
        "storage-said-to-write-what-is-not-sent",
        "with a storage that keeps what it gets, commits are acknowledged before it gets them",
        (Edit("store/postgres/connection.py", '("fsync", "full_page_writes")', "tuple(DURABILITY)"),),
        ("tests/store/test_postgres.py::test_what_no_storage_replaces_is_refused_all_the_same",),
    ),
    Defect(
        "refused-and-said-to-be-allowed",
        "`check --store` says that the server allows what it refuses",
        (Edit("store/postgres/capability.py", 'Capability(name, "refused", f', 'Capability(name, "ok", f'),),
        ("tests/store/test_postgres.py::test_what_is_refused_is_named_with_what_follows",),
    ),
    Defect(
        "upkeep-comes-late-after-an-outage",
        "for minutes after an outage nobody counts, recovers, or compares the memory of the store",
        (
            Edit(
                "upkeep/timer.py",
                "2 * pause_seconds if pause_seconds_max is None",
                "300.0 if pause_seconds_max is None",
            ),
        ),
        (
            "tests/upkeep/test_timer.py::test_pauses_are_twice_as_long_while_passes_fail",
            "tests/upkeep/test_tally.py::test_soon_after_an_outage_it_is_counted_again",
        ),
    ),
    Defect(
        "pictures-overwritten-by-a-clock",
        "what was counted before a clock was set back is lost",
        (Edit(_ACTIVITY, "self._writer, self._last_us = uuid4(), 0", "self._last_us = 0"),),
        (_PICTURES + "test_a_clock_that_was_set_back",),
    ),
    Defect(
        "pictures-lose-an-outage",
        "the minutes in which the store was away are gaps for ever",
        (Edit(_ACTIVITY, '"store away"] = 1.0\n                return\n', '"store away"] = 1.0\n'),),
        (_PICTURES + "test_a_store_that_is_away_gets_the_minutes_later",),
    ),
    Defect(
        "pictures-begin-anew-with-a-reload",
        "each reload counts all that the process has counted once more",
        (
            Edit(
                _ACTIVITY,
                "self._counted, self._last_us = before._writer, before._counted,",
                "self._counted, self._last_us = before._writer, {},",
            ),
        ),
        (_PICTURES + "test_a_reload_goes_on",),
    ),
    Defect(
        "pictures-add-what-is-measured",
        "each gateway that sees the same doubt makes it one more",
        (Edit("observe/activity.py", '("mark", *(kind for kind, *_ in _GAUGES))', '("mark",)'),),
        ("tests/observe/test_activity.py::test_what_is_counted_is_added_and_what_is_measured_is_not",),
    ),
    Defect(
        "pictures-grow-with-the-routes",
        "a configuration of thousands of routes fills the store with pictures",
        (Edit("observe/activity.py", "= _bounded(kind, grown)", "= grown"),),
        (_PICTURES + "test_rows_and_bytes_are_bounded",),
    ),
    Defect(
        "pictures-for-ever",
        "the rows of pictures pile up in the store",
        (
            Edit(
                "store/relational/sweep.py",
                '    ("select_old_activity", "delete_activity", 0, "delete_activity"),\n',
                "",
            ),
        ),
        ("tests/conformance/test_activity.py::test_a_sweep_drops_what_is_old[sqlite]",),
    ),
    Defect(
        "a-gap-drawn-as-zero",
        "a time without a gateway looks like one without requests",
        (
            Edit(
                "observe/activity.py",
                "[None if bucket is None else _sum(bucket, kind, labels)",
                "[_sum(bucket or {}, kind, labels)",
            ),
        ),
        ("tests/admin/test_pictures.py::test_a_gap_is_no_zero",),
    ),
)
