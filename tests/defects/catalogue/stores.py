"""Defects of what is remembered: the fast tier, retention, tokens, the journal and its flush."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

LIFECYCLE = "core/lifecycle.py"
TIERED = "store/tiered.py"
GATE = "store/gate.py"
_KEPT = "tests/conformance/test_kept_requests.py::"
_RETENTION = "tests/conformance/test_retention.py::"
_TIERED = "tests/store/test_tiered.py::"
_SIMULATION = "tests/simulation/test_simulation.py::"
_JOURNAL = "tests/store/test_journal.py::"
_TOLD = "tests/protect/test_journaling.py::"
_FLUSHER = "tests/upkeep/test_flusher.py::"

CONFIDENTIAL = "core/confidential.py"
_CONFIDENTIAL = "tests/core/test_confidential.py::"
_REKEYING = "tests/store/test_rekeying.py::"
_SEALED = "tests/store/test_sealed.py::"

_HOSTS = "tests/store/test_postgres_hosts.py::"
LEVEL = "store/level.py"
_LEVELS = "tests/store/test_level.py::"

DEFECTS = (
    Defect(
        "any-level-will-do",
        "a program uses a store to which a newer one may write what it cannot read",
        (Edit(LEVEL, "    if level > program:\n", "    if level > program + 1:\n"),),
        (_LEVELS + "test_a_store_of_a_later_level_is_refused[sqlite]",),
    ),
    Defect(
        "raised-beside-an-older-gateway",
        "the level is raised while a gateway of an older program runs",
        (Edit(LEVEL, "    if older:\n", "    if False:\n"),),
        (_LEVELS + "test_gateways_of_an_older_program_are_named_when_the_level_is_to_be_raised[sqlite]",),
    ),
    Defect(
        "deaf-to-the-level",
        "a gateway that runs while the level is raised goes on granting",
        (
            Edit(
                "store/memory/guard.py",
                "if (refused := why_refused(epoch.level)) is not None:",
                "if not self._is_open and (refused := why_refused(epoch.level)) is not None:",
            ),
        ),
        (_LEVELS + "test_a_gateway_that_runs_while_the_level_is_raised_stops",),
    ),
    Defect(
        "listed-all-the-same",
        "a worker that slept while the level was raised is listed, and what it grants is believed",
        (
            Edit(
                "store/postgres/sql/member.sql",
                "WHERE g.id = $2 AND g.level >= (SELECT e.level FROM idempotency_gateway.epoch e)\nRETURNING\n",
                "WHERE g.id = $2\nRETURNING\n",
            ),
        ),
        ("tests/store/test_level.py::test_a_worker_of_an_older_program_is_not_listed_any_more",),
    ),
    Defect(
        "tombstone-without-a-fingerprint",
        "a narrow tombstone does not tell requests apart",
        (
            Edit(
                "store/relational/rows.py",
                "        fingerprint.digest[:SHORT_DIGEST_BYTES],\n        fingerprint.raw[:SHORT_DIGEST_BYTES],\n",
                "        *(2 * (bytes(SHORT_DIGEST_BYTES),)),\n",
            ),
        ),
        ("tests/conformance/test_tombstones.py::test_a_repeat_gets_the_same_refusal[sqlite]",),
    ),
    Defect(
        "tombstone-collected-early",
        "a narrow tombstone ends with the minute before its end",
        (
            Edit(
                "store/relational/rows.py",
                'remember_until_us=found["remember_until_us"],',
                'remember_until_us=found["remember_until_us"] // 60_000_000 * 60_000_000,',
            ),
        ),
        ("tests/conformance/test_tombstones.py::test_a_key_is_free_again_at_the_moment_it_is_due[sqlite]",),
    ),
    Defect(
        "narrow-tombstones-not-counted",
        "a start whose configuration loses the keys of narrow tombstones is accepted",
        (Edit("store/relational/sql/select_alive.sql", "coalesce(o.operation, k.operation) = ?1", "o.operation = ?1"),),
        ("tests/conformance/test_tombstones.py::test_tombstones_are_living_keys[sqlite]",),
    ),
    Defect(
        "back-to-a-former-primary",
        "while the promoted primary is away, the former one is used again",
        (Edit("store/postgres/hosts.py", "if _timeline(each) < met.get(each.system, 0)", "if False"),),
        (_HOSTS + "test_a_standby_is_passed_over_and_a_promotion_followed",),
    ),
    Defect(
        "one-of-two-primaries",
        "of two servers that were promoted apart, the one that is listed first is used",
        (
            Edit(
                "store/postgres/hosts.py", "if len({(each.system, each.started) for each in highest}) > 1:", "if False:"
            ),
        ),
        (_HOSTS + "test_of_two_that_were_promoted_apart_none_is_used",),
    ),
    Defect(
        "response-of-another-attempt",
        "an encrypted response is believed under another token of its operation",
        (
            Edit(
                CONFIDENTIAL,
                'b"%b attempt %d %b" % (operation_id.bytes, token, part)',
                'b"%b attempt %b" % (operation_id.bytes, part)',
            ),
        ),
        (_SEALED + "test_a_response_of_an_earlier_attempt_is_not_replayed[sqlite]",),
    ),
    Defect(
        "the-same-nonce-always",
        "equal contents are encrypted to equal bytes, and two contents of one place give each other away",
        (
            Edit(
                "core/sealing.py",
                "key_id, nonce = self._current_id, self._random_bytes(_NONCE_BYTES)",
                "key_id, nonce = self._current_id, bytes(_NONCE_BYTES)",
            ),
        ),
        (_CONFIDENTIAL + "test_no_two_are_alike",),
    ),
    Defect(
        "key-in-clear-in-spite-of-encryption",
        "the caller's key is stored as it came",
        (
            Edit(
                CONFIDENTIAL,
                'return replace(identity, key=ring.seal_text(content, _of_operation(operation_id, b"key")))',
                "return identity",
            ),
        ),
        (_SEALED + "test_nothing_can_be_read_beside_the_store[sqlite]",),
    ),
    Defect(
        "keys-of-a-claim-lost-by-its-completion",
        "a completion forgets which keys the record that it was granted is encrypted with",
        (
            Edit(
                CONFIDENTIAL,
                'changed["granted"] = granted.sealed',
                'changed["granted"] = granted',
            ),
        ),
        (_SEALED + "test_a_completion_keeps_count_of_the_keys_that_the_rest_needs[sqlite]",),
    ),
    Defect(
        "journal-in-clear",
        "an outcome that waits for the durable store is on the disk as it came",
        (Edit("protect/journaling.py", "self.sealing.sealed(command)", "command"),),
        (_SEALED + "test_outcomes_in_a_journal",),
    ),
    Defect(
        "rekey-passes-over-what-is-clear",
        "what is clear beside something that is encrypted with the current key stays clear for ever",
        (
            Edit(
                CONFIDENTIAL,
                "if self.is_old(value) else part",
                "if self.is_old(value) and clear is not part else part",
            ),
        ),
        (_REKEYING + "test_what_was_clear_beside_something_sealed_is_encrypted[sqlite]",),
    ),
    Defect(
        "rekey-trusts-the-id",
        "rekey says that nothing is left, and what another key of that id encrypted cannot be read",
        (
            Edit(
                CONFIDENTIAL,
                "clear = form.open(self.ring, part, *bound)",
                "clear = form.open(self.ring, part, *bound) if self.is_old(value) else part",
            ),
        ),
        (
            _REKEYING + "test_what_another_key_of_the_same_id_encrypted_is_counted[sqlite]",
            "tests/http/gateway/test_rekeying.py::test_a_key_that_is_another_one_under_its_id[sqlite]",
        ),
    ),
    Defect(
        "rekey-passes-over-audits-of-pauses",
        "the texts of pauses that are over need the old key for ever",
        (
            Edit(
                "store/rekeying.py",
                "return _texts(again, of_pause(service, operation, is_resumed=bool(is_resumed)), *texts)",
                "return texts",
            ),
        ),
        (_REKEYING + "test_everything_is_encrypted_again[sqlite-other key]",),
    ),
    Defect(
        "key-of-a-kept-request-not-counted",
        "a start without the key of a kept request is accepted, if its operation has another one",
        (Edit("store/relational/rekeying.py", '("request", "key_id"), ', ""),),
        (_REKEYING + "test_everything_is_encrypted_again[sqlite-other key]",),
    ),
    Defect(
        "key-of-a-journal-not-counted",
        "a start without the key of an outcome that waits in a journal is accepted",
        (Edit("app/gateway.py", "await refuse_unreadable_journals(self.config)", "pass"),),
        ("tests/http/gateway/test_encryption.py::test_an_outcome_that_waits_needs_its_key",),
    ),
    Defect(
        "reasons-of-a-pause-not-of-their-row",
        "why an operation name was paused can be exchanged with why it was another time",
        (Edit(CONFIDENTIAL, 'return framed(b"row", name.encode())', 'return b""'),),
        (_SEALED + "test_reasons_are_of_their_row[sqlite]",),
    ),
    Defect(
        "cut-headers-are-none",
        "a response whose headers were cut is replayed without them, and with its body as it is stored",
        (Edit(CONFIDENTIAL, "return _CUT_HEADERS", "return ()"),),
        (_SEALED + "test_what_was_cut[sqlite-headers]",),
    ),
    Defect(
        "missing-key-accepted",
        "a gateway starts on a store that is encrypted with a key that it does not have",
        (Edit("store/sealed.py", "if key_id not in key_ids}", "if not key_ids}"),),
        ("tests/http/gateway/test_rekeying.py::test_a_rotation[sqlite]",),
    ),
    Defect(
        "another-key-accepted",
        "a gateway starts with another key under the id of the one that its store is encrypted with",
        (Edit("store/rekeying.py", "return reasons[0] if reasons and all(reasons) else None", "return None"),),
        (
            "tests/http/gateway/test_rekeying.py::test_a_key_that_is_another_one_under_its_id[sqlite]",
            "tests/conformance/test_sealed_examples.py::test_examples_of_a_key[sqlite]",
        ),
    ),
    Defect(
        "journal-kept-under-the-old-key",
        "rekey leaves the outcomes that wait in a journal under the key that is taken out next",
        (Edit("store/journal/view.py", "return 0 if again is command else len(", "return 0 * len("),),
        (_SEALED + "test_outcomes_in_a_journal_are_encrypted_again",),
    ),
    Defect(
        "lane-of-a-guess",
        "whoever has the table can compute the lane of an account that is guessed, in spite of an identity key",
        (Edit("protect/identification.py", "stored_digest(value, self.identity_secret)", "value.digest"),),
        ("tests/http/gateway/test_order.py::test_a_lane_shows_no_guess_of_its_account",),
    ),
    Defect(
        "decision-of-a-guess",
        "the id of a decision shows whether a guess of an operator's reason or of a response is right",
        (Edit("admin/operations.py", "command = replace(command, resolution_id=ids[0])", "ids.clear()"),),
        ("tests/admin/test_operations.py::test_the_id_of_a_decision_shows_no_guess",),
    ),
    Defect(
        "event-without-what-it-should-say",
        "an event that cannot be decrypted is published with nothing in it",
        (
            Edit(
                "store/sealed.py",
                'dead.append(EventReport(*lease, EventFate.DEAD, f"unreadable: {error}", line=leased.line))',
                "opened.append(leased)",
            ),
        ),
        (_SEALED + "test_an_event_that_cannot_be_read_is_dead_until_its_key_is_back[sqlite]",),
    ),
    Defect(
        "failures-of-events-in-clear",
        "what a consumer quotes of an event when it refuses it stands in the table in clear",
        (
            Edit(
                "store/sealed.py",
                "why=seal(each.why, each.sink, each.event_id)",
                "why=each.why",
            ),
        ),
        (_SEALED + "test_why_an_event_failed_is_for_operators_alone[sqlite]",),
    ),
    Defect(
        "rekey-passes-over-failures-of-events",
        "why an event could not be published stays under the key that is taken out next",
        (
            Edit(
                "store/rekeying.py",
                "return content, response, again.again(FAILURE, why, sink, event_id)",
                "return content, response, why",
            ),
        ),
        (_REKEYING + "test_everything_is_encrypted_again[sqlite-other key]",),
    ),
    Defect(
        "read-before-a-purge-put-after-it",
        "a gateway that read an answer before its purge brings it back to Redis afterwards",
        (Edit("store/redis/node.py", "if put.started_seconds < since_seconds:", "if False:"),),
        ("tests/store/test_redis.py::test_a_purge_ends_what_was_put_and_what_was_read",),
    ),
    Defect(
        "entry-of-another-era",
        "what was in Redis before a purge, a restart or a failover is believed after it",
        (Edit("store/redis/copies.py", "or entry_era != era or", "or"),),
        ("tests/store/test_redis.py::test_a_purge_ends_what_was_put_and_what_was_read",),
    ),
    Defect(
        "purges-of-others-unheard",
        "a purge by a gateway that could not reach Redis is never told there",
        (Edit("store/redis/lua/era.lua", " and held:sub(-32, -17) ~= ARGV[3]", " and false"),),
        (_TIERED + "test_a_purge_that_redis_was_not_told_of_reaches_others",),
    ),
    Defect(
        "purge-told-to-the-former-master",
        "after a failover of Redis the new master is not told of a purge that its former one was told of",
        (
            Edit(
                "store/redis/node.py",
                "self._run_id = run_ids[0]\n                self._forget_eras(self._buckets)\n",
                "self._run_id = run_ids[0]\n",
            ),
        ),
        ("tests/store/test_redis.py::test_a_purge_is_told_to_each_server_anew",),
    ),
    Defect(
        "purge-makes-no-generation",
        "a purge on SQLite is one that nobody but who did it can learn of",
        (Edit("store/relational/executor.py", "if isinstance(command, _PURGING):\n", "if False:\n"),),
        ("tests/conformance/test_epoch.py::test_only_purges_and_erasures_make_another_generation[sqlite]",),
    ),
    Defect(
        "two-masters",
        "after a failover of Redis the former master goes on to answer with what was purged",
        (
            Edit(
                "store/redis/node.py",
                "            if run_ids[0] != run_ids[1]:\n",
                "            if not run_ids[0]:\n",
            ),
        ),
        ("tests/store/test_redis.py::test_a_connection_that_outlived_a_failover_answers_nothing",),
    ),
    Defect(
        "copies-of-any-store",
        "a key is answered with what another durable store on the same Redis holds under it",
        (Edit("store/redis/store.py", 'prefix = f"{KEY_PREFIX}{store}:"', "prefix = KEY_PREFIX"),),
        ("tests/http/gateway/test_shared_redis.py::test_two_stores_on_one_redis_answer_for_themselves[new]",),
    ),
    Defect(
        "copies-of-a-store-unmet",
        "before Postgres was reached, a gateway answers from the copies of a store that its host served formerly",
        (
            Edit(
                "store/memory/guard.py",
                "if own is not None and shared is not None and lineage(own.identity) == lineage(shared.identity):",
                "if own is not None:",
            ),
        ),
        ("tests/store/test_guard.py::test_a_store_that_is_away_is_known_by_two_notes[disagree]",),
    ),
    Defect(
        "reads-of-any-memory",
        "behind a pooler, a request that a promoted standby has forgotten is said to have had no effect",
        (Edit("store/postgres/store.py", "self._dialer.run(self._link, ", "self._link.run("),),
        ("tests/store/test_postgres.py::test_a_pooler_that_goes_over_to_another_memory",),
    ),
    Defect(
        "window-from-the-end-of-the-call",
        "a copy lives longer than its record by as long as the store took to answer",
        (
            Edit(
                GATE,
                " copies.keep(result.snapshot, started_seconds)\n",
                " copies.keep(result.snapshot, ended_seconds)\n",
            ),
        ),
        ("tests/store/test_tiered.py::test_a_slow_answer_makes_no_young_copy",),
    ),
    Defect(
        "fast-window-from-the-put",
        "an entry lives longer than its record by as long as it took to reach Redis",
        (
            Edit(
                "store/redis/node.py",
                "started_us = self.server_us(put.started_seconds)",
                "started_us = self.server_us(self._clock())",
            ),
        ),
        ("tests/store/test_redis.py::test_the_window_is_counted_from_the_start_of_the_call",),
    ),
    Defect(
        "cache-survives-a-purge",
        "a process answers from its memory what was purged",
        (
            Edit(TIERED, "self._cache.drop(command.operation_id, self._clock())", "pass"),
            Edit(TIERED, "tell(lambda operation_id: self._cache.drop(operation_id, clock()))", "pass"),
        ),
        (_TIERED + "test_a_purge_reaches_every_copy",),
    ),
    Defect(
        "fast-tier-survives-a-purge",
        "a gateway answers from Redis what an operator was told is gone",
        (
            Edit(
                TIERED,
                "        try:\n            await self._fast.forget(operation_id, generation)\n",
                "        try:\n            pass\n",
            ),
            Edit("store/memory/guard.py", "_met(epoch.identity, epoch.generation)", "_met(epoch.identity, None)"),
        ),
        (_SIMULATION + "test_no_invariant_breaks[from-0]",),
    ),
    Defect(
        "window-by-the-wall-clock",
        "a process compares the end of a window with what its own wall clock shows",
        (
            Edit(
                "store/tiered.py",
                "from collections import OrderedDict\n",
                "import time\nfrom collections import OrderedDict\n",
            ),
            Edit(
                "store/tiered.py",
                "(record.replay_until_us - snapshot.now_us)",
                "(record.replay_until_us - time.time_ns() // 1000)",
            ),
        ),
        (_SIMULATION + "test_wall_clocks_change_nothing",),
    ),
    Defect(
        "cache-outlives-the-window",
        "a process answers from its memory what has expired",
        (
            Edit(
                "store/tiered.py",
                "min(self._age_seconds_max, window_seconds)",
                "self._age_seconds_max",
            ),
        ),
        ("tests/store/test_cache.py::test_an_entry_ends_with_its_window",),
    ),
    Defect(
        "unacknowledged-is-cached",
        "a completion whose answer was lost is believed, and answered from a copy",
        (
            Edit(
                GATE,
                "            result = await self.behind.apply(sealed)\n",
                "            result = await self.behind.apply(sealed)\n            _HELD[:] = [result.snapshot]\n",
            ),
            Edit(
                GATE,
                "        except BaseException as failure:\n",
                "        except BaseException as failure:\n"
                "            if isinstance(command, Complete):\n"
                "                from gateway.core.lifecycle import step\n"
                "                result, _ = step(_HELD[0].record, command, _HELD[0].now_us, int)\n"
                "                copies.keep(result.snapshot, started_seconds)\n",
            ),
            Edit(GATE, "class Gate:", "_HELD = []\n\n\nclass Gate:"),
        ),
        ("tests/store/test_tiered.py::test_a_lost_completion_is_no_copy[no-effect]",),
    ),
    Defect(
        "sweep-collects-the-lapsed",
        "a sweep removes the claims of dead holders",
        (
            Edit(
                "store/relational/sweep.py",
                "            settled = None if record is None else written_down(record, now_us)\n",
                "            settled = None if record is None else written_down(record, now_us)\n"
                "            settled = None if record.state is State.CLAIMED else settled\n",
            ),
        ),
        (_RETENTION + "test_a_sweep_writes_down_what_everybody_already_sees[sqlite]",),
    ),
    Defect(
        "doubt-is-collected",
        "time ends a doubt",
        (
            Edit(
                LIFECYCLE,
                "Row((_S.RELEASED, _S.TOMBSTONE), _E.COLLECT,",
                "Row((_S.RELEASED, _S.TOMBSTONE, _S.IN_DOUBT), _E.COLLECT,",
            ),
        ),
        ("tests/core/test_lifecycle.py::test_every_state_can_be_left_but_by_time_alone_never_from_doubt",),
    ),
    Defect(
        "tombstone-executes",
        "a key whose answer is gone is executed again",
        (
            Edit(LIFECYCLE, "Row((_S.RELEASED,), _E.CLAIM,", "Row((_S.RELEASED, _S.TOMBSTONE), _E.CLAIM,"),
            Edit(
                "core/verdict.py",
                "        case State.TOMBSTONE:\n            return Refuse(Verdict.KEY_EXPIRED, record)",
                "        case State.TOMBSTONE:\n            return Claimable(fingerprint, record.token)",
            ),
        ),
        ("tests/http/gateway/test_verdicts.py::test_rule_12_key_expired[sqlite-410]",),
    ),
    Defect(
        "retire-collects",
        "with its answer the key is forgotten",
        (
            Edit(
                LIFECYCLE, "Row((_S.COMPLETED,), _E.RETIRE, _S.TOMBSTONE,", "Row((_S.COMPLETED,), _E.RETIRE, _S.ABSENT,"
            ),
        ),
        ("tests/http/gateway/test_verdicts.py::test_rule_12_key_expired[sqlite-410]",),
    ),
    Defect(
        "token-reused",
        "once a record is gone its token is given out again",
        (
            Edit(
                "store/sqlite/transaction.py",
                "self.cursor.execute(_SELECT_SEQUENCE)",
                'self.cursor.execute("SELECT coalesce(max(token), 0) FROM operation")',
            ),
        ),
        (_RETENTION + "test_a_token_is_never_used_again_after_the_record_is_gone[sqlite]",),
    ),
    Defect(
        "token-of-a-time-drawn-again",
        "on distributed SQL, a token is given out again after its record is gone and the clock was set back",
        (Edit("store/postgres/transaction.py", "        if token > self._floor:\n", "        if False:\n"),),
        ("tests/store/test_portable.py::test_a_token_is_not_drawn_again_after_the_clock_was_set_back[erased]",),
    ),
    Defect(
        "answered-before-fsync",
        "the journal answers before the outcome is on the disk",
        (
            Edit(
                "store/sqlite/connection.py",
                'cursor.execute("PRAGMA synchronous = FULL")\n        synchronous',
                'cursor.execute("PRAGMA synchronous = OFF")\n        synchronous',
            ),
            Edit("store/sqlite/connection.py", '([("wal",)], [(2,)])', '([("wal",)], [(0,)])'),
        ),
        (_JOURNAL + "test_a_commit_that_fails_is_never_acknowledged[sync]",),
    ),
    Defect(
        "failed-commit-acknowledged",
        "a store whose disk failed at the commit says that it is done",
        (
            Edit(
                "store/sqlite/connection.py",
                'raise Indefinite(f"{self.path}: the commit failed: {error}") from error',
                "return result",
            ),
        ),
        ("tests/store/test_sqlite.py::test_a_commit_that_fails_is_unknown_until_the_disk_works",),
    ),
    Defect(
        "unsynced-after-a-sweep",
        "a sweep, which needs no fsync, leaves the writer without one for the commands that follow",
        (
            Edit(
                "store/sqlite/connection.py",
                'self._cursor.execute("PRAGMA synchronous = FULL")',
                'self._cursor.execute("PRAGMA synchronous")',
            ),
        ),
        ("tests/store/test_sqlite.py::test_a_sweep_waits_for_no_disk_and_every_command_does",),
    ),
    Defect(
        "refused-flush-dropped",
        "an outcome that the store refused is thrown away",
        (
            Edit(
                "upkeep/flusher.py",
                "await self._journal.refuse([(entry.entry_id, why) for entry, why in batch.refused])",
                "await self._journal.forget([entry.entry_id for entry, _ in batch.refused])",
            ),
        ),
        (_FLUSHER + "test_a_refused_outcome_is_kept[fenced]",),
    ),
    Defect(
        "waiting-taken-out",
        "an operator can take out an outcome that the store has yet to get",
        (Edit("store/journal/file.py", "id = ? AND refused_us IS NOT NULL", "id = ?"),),
        ("tests/admin/test_outcome.py::test_taken_out_under_its_owner",),
    ),
    Defect(
        "acknowledged-for-nothing",
        "what tells how an operation in doubt ended can be acknowledged before the record knows it",
        (Edit("admin/journal.py", "    _check_known(record, chosen)\n", ""),),
        ("tests/admin/test_outcome.py::test_doubt_is_ended_by_what_was_kept",),
    ),
    Defect(
        "denied-over-a-journal",
        "an operator says that an operation never happened whose response waits in the journal",
        (
            Edit(
                "admin/operations.py",
                "if isinstance(ruling, NothingHappened) and snapshot.state in UNENDED:",
                "if False:",
            ),
        ),
        ("tests/admin/test_outcome.py::test_what_happened_is_not_denied[waiting]",),
    ),
    Defect(
        "journals-of-others-not-asked",
        "what is in the journal of another process of the host is not known to this one",
        (
            Edit(
                "store/journal/journal.py",
                "self._host.stored_outcomes(operation_id, leave_out=self._files)",
                "self._host.stored_outcomes(operation_id, leave_out=self._files)[:0]",
            ),
        ),
        (_TOLD + "test_a_response_in_another_process_s_journal[store]",),
    ),
    Defect(
        "told-of-another-store",
        "without the store, a response is told that another store may not have",
        (Edit("protect/journaling.py", 'each.memory == memory != ""', "memory is not None"),),
        (_TOLD + "test_a_response_that_may_not_be_told_without_the_store[another memory]",),
    ),
    Defect(
        "told-what-was-read-before",
        "a record that was read before its outcome left the journal is told as a doubt",
        (
            Edit(
                "protect/journaling.py",
                "if after is None and is_told_next and record.state not in UNENDED else after",
                "if False else after",
            ),
        ),
        (_TOLD + "test_a_response_that_was_recorded_just_now",),
    ),
    Defect(
        "unsent-taken-for-running",
        "a claim under which a killed process had sent nothing is told as a request that runs",
        (
            Edit(
                "protect/journaling.py",
                "if record.attempt_id in unsent and record.state in UNENDED:",
                "if False:",
            ),
        ),
        (_TOLD + "test_an_attempt_that_was_not_sent",),
    ),
    Defect(
        "flushed-before-recorded",
        "an outcome leaves the journal although the store did not answer",
        (
            Edit(
                "upkeep/flusher.py",
                "            except StoreError as error:\n                batch.left.append((entry, error))",
                "            except StoreError:\n                batch.applied.append(entry)",
            ),
        ),
        (_FLUSHER + "test_a_silent_store_is_asked_with_one",),
    ),
    Defect(
        "postgres-frees-the-lapsed",
        "the sweep of Postgres frees the keys of dead holders",
        (
            Edit(
                "store/relational/sweep.py",
                "            settled = None if record is None else written_down(record, now_us)\n",
                "            settled = None if state is State.CLAIMED else record and written_down(record, now_us)\n",
            ),
        ),
        ("tests/conformance/test_retention.py::test_a_sweep_writes_down_what_everybody_already_sees[postgres]",),
    ),
    Defect(
        "postgres-keeps-what-was-delivered",
        "the requests of operations that are over stay in the store for ever",
        (Edit("store/relational/executor.py", '                rows["delete_request"].append(key)\n', ""),),
        ("tests/store/test_sqlite.py::test_no_byte_of_a_request_stays_behind[withdraw]",),
    ),
    Defect(
        "postgres-lets-the-paused-expire",
        "the time of a pause counts against what it holds up on Postgres",
        (Edit("store/relational/sweep.py", "limit -= await _hold_paused(cursor, now_us, limit)", "limit -= 0"),),
        ("tests/conformance/test_kept_requests.py::test_a_pause_holds_everything_of_its_name[postgres]",),
    ),
    Defect(
        "postgres-walks-past-what-may-commit",
        "the walk for lapsed claims passes a claim that commits after one with a later token",
        (Edit("store/postgres/sql/sweep.sql", "WHERE y.token > $2::BIGINT\n", "WHERE $2::BIGINT IS NULL\n"),),
        ("tests/store/test_postgres_walk.py::test_a_walk_waits_for_a_lower_token_however_the_clock_is_set[back]",),
    ),
    Defect(
        "postgres-walks-past-a-claim",
        "the walk for lapsed claims passes one that is under way",
        (Edit("store/postgres/sql/sweep.sql", "OR y.state = 'claimed' AND y.watched IS NULL\n", "OR y.state = ''\n"),),
        ("tests/store/test_postgres_walk.py::test_a_claim_that_the_walk_has_come_to[takeover]",),
    ),
    Defect(
        "postgres-misses-what-moved",
        "a command on Postgres that waited for a tombstone, which became narrow meanwhile, finds nothing",
        (Edit("store/postgres/transaction.py", "            if has_moved:\n", "            if has_moved is None:\n"),),
        ("tests/store/test_postgres_narrow.py::test_a_command_that_waits_for_a_record_on_its_way[erase]",),
    ),
    Defect(
        "sqlite-keeps-what-a-sweep-added",
        "a pause of a minute moves the end of what a sweep has held by an hour",
        (Edit("store/relational/kept.py", "in rows if by_us])", "in rows if by_us > 0])"),),
        (_KEPT + "test_a_pause_moves_the_end_by_its_length[sqlite-1800-10-50]",),
    ),
    Defect(
        "repeated-end-of-a-pause-pays-less",
        "what an end of a pause came to before it failed loses the time until the end is repeated",
        (Edit("store/relational/kept.py", "now_us - PAUSE_END_US if is_first else 0", "0"),),
        ("tests/store/test_sqlite.py::test_a_pause_ends_in_short_transactions[3600]",),
    ),
    Defect(
        "pause-of-many-never-ends",
        "the end of a pause that takes longer than a command may begins anew each time",
        (Edit("store/relational/kept.py", "now_us - PAUSE_END_US if is_first else 0", "now_us if is_first else 0"),),
        ("tests/store/test_sqlite.py::test_a_pause_ends_in_short_transactions[1]",),
    ),
    Defect(
        "sweep-looks-too-little",
        "while nothing else is due, what is paused becomes a dead letter",
        (
            Edit(
                "store/relational/sweep.py",
                "return any(await cursor.together([*_pauses(now_us), ",
                "return any(await cursor.together([*_pauses(now_us)[:1], ",
            ),
        ),
        ("tests/conformance/test_kept_requests.py::test_a_pause_when_nothing_is_due[sqlite]",),
    ),
    Defect(
        "postgres-forgets-the-fence",
        "Postgres records whatever completion comes, whoever says it",
        (Edit("store/postgres/hot.py", " AND o.token = i.token AND o.attempt_id = i.attempt_id", ""),),
        ("tests/conformance/test_fences.py::test_an_answer_whose_claim_is_over_is_not_written[postgres]",),
    ),
    Defect(
        "a-claim-looks-among-narrow-rows-alone",
        "a claim that comes while a record moves to the narrow rows is granted",
        (
            Edit(
                "store/postgres/statements.py",
                "SELECT 1 FROM idempotency_gateway.operation AS n",
                "SELECT 1 FROM idempotency_gateway.narrow AS n",
            ),
        ),
        ("tests/store/test_postgres_narrow.py::test_a_claim_while_a_record_is_on_its_way",),
    ),
    Defect(
        "postgres-changes-what-it-has-not-locked",
        "Postgres writes what the table made of a record that somebody else changed meanwhile",
        (Edit("store/postgres/statements.py", '"FOR UPDATE"', '""'),),
        ("tests/store/test_postgres_fences.py::test_what_a_command_waited_for_counts[takeover]",),
    ),
    Defect(
        "postgres-keeps-what-is-null",
        "what all rows of a batch have no value for stays as it was: a forgotten claim keeps its fingerprint",
        (
            Edit(
                "store/relational/statements.py",
                'f"i.{each}" if each in given else "NULL"',
                'f"i.{each}" if each in given else f"o.{each}"',
            ),
        ),
        (
            "tests/conformance/test_table.py::"
            "test_every_event_has_the_effect_that_the_table_gives_it[postgres-claim-forget]",
        ),
    ),
    Defect(
        "postgres-collects-what-is-due",
        "a sweep of Postgres removes a doubt that is written down as due",
        (
            Edit("store/relational/sql/select_due.sql", "WHERE o.state = ? AND o.due_us", "WHERE ? <> '' AND o.due_us"),
            Edit(
                "store/relational/sweep.py",
                "            settled = None if record is None else written_down(record, now_us)\n",
                "            settled = None if record is None else written_down(record, now_us)\n"
                "            settled = None if settled is record else settled\n",
            ),
        ),
        ("tests/store/test_rules.py::test_a_sweep_writes_down_what_the_clock_did[postgres]",),
    ),
    Defect(
        "postgres-commit-taken-for-lost",
        "a change of Postgres whose commit was not answered is said not to have been made",
        (
            Edit(
                "store/postgres/connection.py",
                '        status = await connection.execute("COMMIT")\n    finally:\n',
                '        status = await connection.execute("COMMIT")\n'
                '    except Exception as error:\n        raise NotApplied("lost") from error\n    finally:\n',
            ),
        ),
        ("tests/store/test_postgres_faults.py::test_a_lost_answer_within_a_transaction[commit]",),
    ),
    Defect(
        "postgres-holds-locks-for-the-vanished",
        "a gateway that vanishes between a lock and its change keeps others from the record",
        (
            Edit(
                "store/postgres/dialer.py",
                '"idle_in_transaction_session_timeout": str(round(command_seconds * 400))',
                '"idle_in_transaction_session_timeout": "0"',
            ),
        ),
        ("tests/store/test_postgres_vanished.py::test_between_lock_and_change_nobody_is_held_up",),
    ),
    Defect(
        "no-room-is-a-bad-value",
        "a response that no partition has room for yet is rejected for ever",
        (
            Edit(
                "store/postgres/connection.py",
                "return self.is_of_some and self.sqlstate != CHECK_VIOLATION",
                "return self.is_of_some",
            ),
        ),
        ("tests/store/test_postgres_days.py::test_without_room_a_response_is_not_refused",),
    ),
    Defect(
        "detached-day-is-lost",
        "a day that was detached is never written to again",
        (
            Edit(
                "store/postgres/sql/migrations/0001_operations.sql",
                "    IF to_regclass(day_table) IS NULL THEN\n",
                "    IF true THEN\n",
            ),
        ),
        ("tests/store/test_postgres_days.py::test_a_day_that_was_detached_is_used_again",),
    ),
    Defect(
        "room-is-made-too-late",
        "room for the responses of a day is made when the day has begun",
        (Edit("store/postgres/days.py", "DAYS_AHEAD: Final = 2", "DAYS_AHEAD: Final = 0"),),
        ("tests/store/test_postgres_days.py::test_there_is_room_from_the_start",),
    ),
    Defect(
        "postgres-rights-found-missing-too-late",
        "a role that may claim and may not keep a request starts",
        (Edit("store/postgres/schema.py", "    if rows:\n        role", "    if False and rows:\n        role"),),
        ("tests/store/test_postgres.py::test_a_right_that_was_taken_is_missed_at_the_start[requests]",),
    ),
    Defect(
        "sqlite-sweeps-what-is-due",
        "a sweep of SQLite looks for what is due in any state, and removes a doubt",
        (
            Edit("store/relational/sql/select_due.sql", "WHERE o.state = ? AND o.due_us", "WHERE ? <> '' AND o.due_us"),
            Edit(
                "store/relational/sweep.py",
                "            settled = None if record is None else written_down(record, now_us)\n",
                "            settled = None if record is None else written_down(record, now_us)\n"
                "            settled = None if settled is record else settled\n",
            ),
        ),
        ("tests/store/test_rules.py::test_a_sweep_writes_down_what_the_clock_did[sqlite]",),
    ),
    Defect(
        "sqlite-trusts-the-grant",
        "SQLite records the answer of whoever was granted the claim, although the record has gone on",
        (Edit("store/relational/sql/update_granted.sql", "state = 'claimed' AND lease_until_us > ?", "? > 0"),),
        ("tests/conformance/test_fences.py::test_an_answer_whose_claim_is_over_is_not_written[sqlite]",),
    ),
    Defect(
        "portable-trusts-the-grant",
        "on distributed SQL, the answer of whoever was granted the claim is recorded, although the record has gone on",
        (Edit("store/postgres/hot.py", "o.state = 'claimed' AND o.lease_until_us > s.now_us AND NOT", "NOT"),),
        ("tests/conformance/test_fences.py::test_an_answer_whose_claim_is_over_is_not_written[portable]",),
    ),
    Defect(
        "portable-forgets-what-it-acknowledged",
        "on distributed SQL, a claim is granted by data that lacks what was acknowledged before",
        (Edit("store/postgres/hot.py", " AND w.number = $3::BIGINT", " AND $3::BIGINT IS NOT NULL"),),
        ("tests/store/test_portable.py::test_a_claim_of_data_that_lacks_what_was_acknowledged",),
    ),
    Defect(
        "sqlite-keeps-what-was-delivered",
        "SQLite completes a delivery by the record at hand, and keeps its request for ever",
        (
            Edit(
                "store/relational/executor.py",
                "if granted is None or granted.delivery is not None:",
                "if granted is None:",
            ),
            Edit("store/relational/sql/update_granted.sql", " AND NOT request_kept", ""),
        ),
        ("tests/store/test_sqlite.py::test_no_byte_of_a_request_stays_behind",),
    ),
    Defect(
        "sqlite-pause-takes-time",
        "while an operation name is paused, what waits under it becomes a dead letter",
        (Edit("store/relational/sweep.py", "limit -= await _hold_paused(cursor, now_us, limit)", "limit -= 0"),),
        ("tests/conformance/test_kept_requests.py::test_a_pause_holds_everything_of_its_name[sqlite]",),
    ),
    Defect(
        "outcome-of-a-delivery-unjournaled",
        "whether the upstream had answered is lost in the journal: the limit of answers is never reached",
        (
            Edit(
                "store/journal/file.py",
                "parts = [getattr(command, each.name) for",
                'parts = [each.name != "is_answered" and getattr(command, each.name) for',
            ),
        ),
        ("tests/upkeep/test_flusher.py::test_the_end_of_a_delivery_reaches_the_store",),
    ),
)
