"""Defects of what one gateway does for all: whose turn it is, partitions ahead of need, notes, connections."""

from __future__ import annotations

from tests.defects.defect import read

DEFECTS = read(r"""
days-of-ones-own-windows: responses of other gateways wait for their partitions
  store/postgres/sql/schema.sql tests/store/test_postgres_days.py::test_no_partition_is_late_at_midnight
-coalesce(max(g.replay_us), 0) AS
+coalesce(min(g.replay_us), 0) AS
changed-window-not-said: a start that changes nothing but a window makes no room for it
  store/postgres/store.py tests/store/test_postgres_days.py::test_a_start_makes_room_for_its_window
-slow.link, serving.replay_us)
+slow.link, 0)
declared-window-forgotten: a window that a response declared makes one wait on each day
  store/postgres/store.py tests/store/test_postgres_days.py::test_no_completion_makes_room
-gateway_id.bytes, self._days.longest_us
+gateway_id.bytes, 0
late-partition-not-counted: nobody sees that responses waited for their partition
  store/postgres/schema.py tests/store/test_postgres_days.py::test_no_completion_makes_room
-        self.late += 1
turn-taken-from-the-living: whoever asks has the turn, and every gateway sweeps
  store/relational/sql/gateways.sql tests/conformance/test_turns.py::test_a_turn_is_of_one_gateway[sqlite]
-t.name = n.value
+FALSE
turn-of-the-dead-stays: nobody takes over from a gateway that died
  store/relational/sql/gateways.sql tests/conformance/test_turns.py::test_a_turn_is_of_one_gateway[sqlite]
-t.until_us > ?4 AND
+?4 IS NOT NULL AND
turn-of-the-future-stays: where the clock was set back, nobody does anything until it has caught up
  store/relational/sql/gateways.sql tests/conformance/test_turns.py::test_a_turn_of_a_clock_that_was_set_back[sqlite]
- AND t.until_us <= ?3
turn-left-is-anybodys: a gateway that stops takes the turns of all others with it
  store/relational/sql/gateways.sql
  tests/conformance/test_turns.py::test_of_many_that_ask_at_once_one_has_the_turn[sqlite]
-holder = ?1
+holder >= ?1 OR holder < ?1
slow-answer-makes-a-turn-longer: a turn is believed for longer than the store leased it
  upkeep/duty.py tests/upkeep/test_turns.py::test_a_slow_answer_makes_no_turn_longer
-dict.fromkeys(taken, asked + LEASE_SECONDS)
+dict.fromkeys(taken, self.clock() + LEASE_SECONDS)
frozen-and-still-in-charge: a gateway that was frozen goes on as if its turn had not ended
  upkeep/duty.py tests/upkeep/test_turns.py::test_whoever_was_frozen_has_no_turn_when_it_goes_on
-self.clock() < self._until.get(name, 0.0)
+name in self._until
turn-kept-after-the-stop: after a clean stop nobody does anything until the lease is over
  upkeep/duty.py tests/upkeep/test_turns.py::test_a_stop_leaves_the_turn
-await self.store.leave_turns(self._holder)
+pass
everybody-sweeps: each gateway sweeps, whoever has the turn
  app/parts.py tests/app/test_gateway.py::test_a_gateway_alone_has_all_turns
-has_turn=partial(turns.has, Duty.SWEEP)
+has_turn=lambda: True
one-recovers-for-other-routes: operations of routes that the one in charge does not have are never recovered
  app/parts.py tests/app/test_gateway.py::test_gateways_with_other_routes_have_other_turns
-{service} {_digest_of(recovered)}
+{service}
tally-outlives-its-turn: what a gateway counted last stands beside what another one counts now
  upkeep/duty.py tests/upkeep/test_turns.py::test_whoever_counts_no_more_reports_nothing
-            self._take_back()
-
notes-of-the-one-in-charge-alone: a gateway without a turn never hears of a lost memory, nor that it was accepted
  app/parts.py tests/integration/test_turns.py::test_every_gateway_hears_of_a_lost_memory_and_that_it_is_accepted
-            repeat(self._exchange_notes, pause_seconds=_NOTES_SECONDS, sleep=self._sleep_between_notes),
-
notes-before-they-are-judged: a start over an older store fails when it compares the configuration, for ever, and never
    declares the loss
  store/postgres/store.py
  tests/conformance/test_witness.py::test_a_store_that_lacks_what_it_acknowledged_can_be_looked_at[postgres]
-idle_seconds=_IDLE_SECONDS, compares_notes=False
+idle_seconds=_IDLE_SECONDS
tally-before-notes-are-judged: likewise, when it counts what is encrypted
  store/postgres/store.py
  tests/conformance/test_witness.py::test_a_store_that_lacks_what_it_acknowledged_can_be_looked_at[postgres]
-, compares_notes=False)
+)
notes-over-a-witnessed-link: votes and looks at the memory go over a link that notes what it is told, before the memory
    was judged
  store/postgres/store.py
  tests/conformance/test_witness.py::test_a_store_that_lacks_what_it_acknowledged_can_be_looked_at[postgres]
-return self._started().plain.link
+return self._started().links[0]
idle-connections-stay: each gateway keeps a connection that it does not need
  store/postgres/dialer.py tests/store/test_postgres.py::test_a_store_has_few_connections[3]
-if self._idle_seconds is not None:
+if False:
connections-as-always: a gateway opens as many connections as it likes
  app/stores.py tests/store/test_postgres.py::test_how_many_connections_a_gateway_has[2]
-                connections=config.store.connections,
-
storage-said-to-write-what-is-not-sent: with a storage that keeps what it gets, commits are acknowledged before it gets
    them
  store/postgres/connection.py tests/store/test_postgres.py::test_a_server_that_forgets_is_refused[synchronous_commit]
-("fsync", "full_page_writes")
+tuple(DURABILITY)
refused-and-said-to-be-allowed: `check --store` says that the server allows what it refuses
  store/postgres/schema.py tests/store/test_postgres.py::test_what_is_refused_is_named_with_what_follows
-Capability(name, "refused", f
+Capability(name, "ok", f
upkeep-comes-late-after-an-outage: for minutes after an outage nobody counts, recovers, or compares the memory of the
    store
  upkeep/duty.py tests/upkeep/test_timer.py::test_pauses_are_twice_as_long_while_passes_fail
-2 * pause_seconds if pause_seconds_max is None
+300.0 if pause_seconds_max is None
pictures-overwritten-by-a-clock: what was counted before a clock was set back is lost
  upkeep/activity.py tests/upkeep/test_activity.py::test_a_clock_that_was_set_back
-self._writer, self._last_us = uuid4(), 0
+self._last_us = 0
pictures-lose-an-outage: the minutes in which the store was away are gaps for ever
  upkeep/activity.py tests/upkeep/test_activity.py::test_a_store_that_is_away_gets_the_minutes_later
-"store away"] = 1.0
-                return
+"store away"] = 1.0
pictures-begin-anew-with-a-reload: each reload counts all that the process has counted once more
  upkeep/activity.py tests/upkeep/test_activity.py::test_a_reload_goes_on
-self._counted, self._last_us = before._writer, before._counted,
+self._counted, self._last_us = before._writer, {},
pictures-add-what-is-measured: each gateway that sees the same doubt makes it one more
  upkeep/activity.py tests/upkeep/test_pictures.py::test_what_is_counted_is_added_and_what_is_measured_is_not
-("mark", "open", "oldest_doubt", "waiting", "oldest_waiting", "lag")
+("mark",)
pictures-grow-with-the-routes: a configuration of thousands of routes fills the store with pictures
  upkeep/activity.py tests/upkeep/test_activity.py::test_rows_and_bytes_are_bounded
-= _bounded(kind, grown)
+= grown
pictures-for-ever: the rows of pictures pile up in the store
  store/relational/executor.py tests/conformance/test_activity.py::test_a_sweep_drops_what_is_old[sqlite]
-    ("select_old_activity", "delete_activity", 0, "delete_activity"),
-
a-gap-drawn-as-zero: a time without a gateway looks like one without requests
  upkeep/activity.py tests/admin/test_console.py::test_a_gap_is_no_zero
-[None if bucket is None else _sum(bucket, kind, labels)
+[_sum(bucket or {}, kind, labels)
""")
