"""Defects of the rule by which a promoted Postgres is believed: each clause of it left out."""

from __future__ import annotations

from tests.defects.defect import read

DEFECTS = read(r"""
promotion-to-an-earlier-timeline: data of a later timeline on an earlier one are believed to be a promotion
  store/memory/promotion.py tests/store/test_postgres_members.py::test_a_promotion_is_believed_when_it_is_proven
-elif lineage(before) != lineage(now) or timeline_of(before) >= timeline_of(now):
+elif False:
promotion-in-spite-of-a-note: a promoted server that lacks what a gateway was told is believed, because all have vouched
  store/memory/promotion.py tests/store/test_postgres_members.py::test_a_promotion_is_believed_when_it_is_proven
-if contradiction is not None:
+if False:
vouch-for-a-twin: what was vouched for one of two servers that were promoted apart counts for the other
  store/memory/promotion.py tests/store/test_postgres_members.py::test_a_promotion_is_believed_when_it_is_proven
-if member.vouched_for != now]
+if not member.vouched_for]
promotion-without-all-votes: a gateway that has not spoken is not waited for
  store/memory/promotion.py tests/store/test_postgres_members.py::test_a_promotion_is_believed_when_it_is_proven
-    elif silent := [member for member in members if member.vouched_for != now]:
+    elif False:
votes-not-counted-by-the-store: a promotion is accepted although the list has grown since the votes were counted
  store/postgres/sql/member.sql
  tests/store/test_postgres_members.py::test_a_promotion_is_accepted_once_and_with_all_votes
-($5::boolean OR NOT EXISTS (
+($5::boolean OR true OR NOT EXISTS (
promotion-that-nobody-ran-through: a gateway that was stopped meanwhile accepts a promotion
  store/memory/promotion.py tests/store/test_postgres_members.py::test_a_promotion_is_believed_when_it_is_proven
-elif not is_fresh:
+elif False:
stale-contact-is-fresh: whoever has vouched counts as having been there until the end
  store/memory/promotion.py tests/store/test_postgres_members.py::test_nobody_was_there[proven]
-return at is not None and self._beats
+return True or self._beats
grants-before-a-standby-knows-it: a gateway that has just started grants although a standby may lack that it is listed
  store/memory/promotion.py tests/store/test_postgres_members.py::test_how_long_a_new_gateway_waits
-return probation_seconds if joined.may_fail_over else 0.0
+return 0.0
late-acknowledgement-counts: a gateway that was frozen believes what the former primary acknowledged to it
  store/memory/guard.py tests/store/test_postgres_members.py::test_what_is_acknowledged_too_late_does_not_count
-boot_seconds() > self._membership.until_seconds:
+False:
known-keys-wait-for-a-grant: a gateway that starts refuses what it has a record of, until its standbys know of it
  store/memory/guard.py tests/integration/test_joining.py::test_only_what_needs_a_grant_waits[silent-host-1]
-return await self._without_grant(command, self._why_no_grants)
+raise NotApplied(self._why_no_grants)
struck-off-while-it-beats: a gateway whose beat has gone on is struck off the list
  store/postgres/sql/member.sql
  tests/store/test_postgres_members.py::test_the_notes_of_a_host_vouch_for_its_ended_workers
-AND g.beat = s.last_beat AND
+AND
member-forgotten: a gateway that starts forgets one that has not been seen for a day and may have been told something
  store/postgres/sql/read.sql tests/store/test_postgres_members.py::test_who_has_not_spoken_is_named
- AND beat IS NULL
notes-from-before-a-boot: the notes of a host vouch for its workers although it was booted since, and the last may be
    missing
  store/postgres/sql/member.sql
  tests/store/test_postgres_members.py::test_the_notes_of_a_host_vouch_for_its_ended_workers
- AND g.boot = $4
+ AND $4::text IS NOT NULL
promoted-memory-keeps-its-identity: what was promoted and accepted cannot be told from its twin
  store/postgres/sql/member.sql
  tests/store/test_postgres_members.py::test_a_restart_in_place_is_accepted_by_those_that_ran
-SET identity = gen_random_uuid()::text, timeline
+SET timeline
late-note-not-compared: a gateway nobody had heard of comes back, and what it was told is not missed
  store/memory/epoch.py tests/store/test_postgres_members.py::test_a_note_that_comes_late_is_compared
-missing(found, epoch, amnesia.beyond, amnesia.continued)
+missing(found, epoch, amnesia.beyond)
""")
