"""Defects of the rule by which a promoted Postgres is believed: each clause of it left out."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

_RULE = "store/memory/promotion.py"
_SQL = "store/postgres/sql/member.sql"
_TABLE = "tests/store/test_promotion.py::"
_BELIEVED = _TABLE + "test_a_promotion_is_believed_when_it_is_proven"
_MEMBERS = "tests/store/test_postgres_members.py::"

DEFECTS = (
    Defect(
        "promotion-to-an-earlier-timeline",
        "data of a later timeline on an earlier one are believed to be a promotion",
        (Edit(_RULE, "if not is_later(epoch):", "if False:"),),
        (_BELIEVED,),
    ),
    Defect(
        "promotion-in-spite-of-a-note",
        "a promoted server that lacks what a gateway was told is believed, because all have vouched",
        (Edit(_RULE, "if contradiction is not None:", "if False:"),),
        (_BELIEVED,),
    ),
    Defect(
        "vouch-for-a-twin",
        "what was vouched for one of two servers that were promoted apart counts for the other",
        (Edit(_RULE, "if member.vouched_for != epoch.identity]", "if not member.vouched_for]"),),
        (_BELIEVED,),
    ),
    Defect(
        "promotion-without-all-votes",
        "a gateway that has not spoken is not waited for",
        (Edit(_RULE, "    if silent:\n", "    if False:\n"),),
        (_BELIEVED,),
    ),
    Defect(
        "votes-not-counted-by-the-store",
        "a promotion is accepted although the list has grown since the votes were counted",
        (Edit(_SQL, "($5::boolean OR NOT EXISTS (", "($5::boolean OR true OR NOT EXISTS ("),),
        (_MEMBERS + "test_a_promotion_is_accepted_once_and_with_all_votes",),
    ),
    Defect(
        "promotion-that-nobody-ran-through",
        "a gateway that was stopped meanwhile accepts a promotion",
        (Edit(_RULE, "elif not is_fresh:", "elif False:"),),
        (_BELIEVED,),
    ),
    Defect(
        "stale-contact-is-fresh",
        "whoever has vouched counts as having been there until the end",
        (Edit("store/memory/promotion.py", "return at is not None and self._beats", "return True or self._beats"),),
        (_MEMBERS + "test_nobody_was_there",),
    ),
    Defect(
        "grants-before-a-standby-knows-it",
        "a gateway that has just started grants although a standby may lack that it is listed",
        (Edit(_RULE, "return probation_seconds if joined.may_fail_over else 0.0", "return 0.0"),),
        (_TABLE + "test_how_long_a_new_gateway_waits",),
    ),
    Defect(
        "late-acknowledgement-counts",
        "a gateway that was frozen believes what the former primary acknowledged to it",
        (Edit("store/memory/guard.py", "boot_seconds() > self._membership.until_seconds:", "False:"),),
        (_MEMBERS + "test_what_is_acknowledged_too_late_does_not_count",),
    ),
    Defect(
        "known-keys-wait-for-a-grant",
        "a gateway that starts refuses what it has a record of, until its standbys know of it",
        (
            Edit(
                "store/memory/guard.py",
                "return await self._without_grant(command, self._why_no_grants)",
                "raise NotApplied(self._why_no_grants)",
            ),
        ),
        ("tests/integration/test_joining.py::test_only_what_needs_a_grant_waits[silent-host-1]",),
    ),
    Defect(
        "struck-off-while-it-beats",
        "a gateway whose beat has gone on is struck off the list",
        (Edit(_SQL, "AND g.beat = s.last_beat AND", "AND"),),
        (_MEMBERS + "test_the_notes_of_a_host_vouch_for_its_ended_workers",),
    ),
    Defect(
        "member-forgotten",
        "a gateway that starts forgets one that has not been seen for a day and may have been told something",
        (Edit("store/postgres/sql/read.sql", " AND beat IS NULL", ""),),
        (_MEMBERS + "test_who_has_not_spoken_is_named",),
    ),
    Defect(
        "notes-from-before-a-boot",
        "the notes of a host vouch for its workers although it was booted since, and the last may be missing",
        (Edit(_SQL, " AND g.boot = $4", " AND $4::text IS NOT NULL"),),
        (_MEMBERS + "test_the_notes_of_a_host_vouch_for_its_ended_workers",),
    ),
    Defect(
        "promoted-memory-keeps-its-identity",
        "what was promoted and accepted cannot be told from its twin",
        (Edit("store/postgres/sql/member.sql", "SET identity = gen_random_uuid()::text, timeline", "SET timeline"),),
        (_MEMBERS + "test_a_restart_in_place_is_accepted_by_those_that_ran",),
    ),
    Defect(
        "late-note-not-compared",
        "a gateway nobody had heard of comes back, and what it was told is not missed",
        (
            Edit(
                "store/memory/epoch.py",
                "missing(notes, epoch, amnesia.beyond, amnesia.continued)",
                "missing(notes, epoch, amnesia.beyond)",
            ),
        ),
        (_TABLE + "test_a_note_that_comes_late_is_compared",),
    ),
)
