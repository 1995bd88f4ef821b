"""Defects of the wiring: parts that work, and are given something else than the configuration says."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

PARTS = "app/parts.py"
ROUTES = "app/routes.py"
AGREEMENT = "config/agreement.py"
_TIMES = "tests/http/gateway/test_times.py::"
_MISTAKES = "tests/config/test_mistakes.py::"
_TIERED = "tests/store/test_tiered.py::"

DEFECTS = (
    Defect(
        "no-time-to-settle",
        "a probe's 404 frees the key as soon as the lease ends, with the request still on its way",
        (Edit(ROUTES, "settle_us=microseconds(settle_seconds(config, route)),", "settle_us=0,"),),
        (_TIMES + "test_a_404_frees_the_key_once_no_request_can_arrive",),
    ),
    Defect(
        "no-grace-for-journals",
        "a lapsed claim is taken over at once, with its outcome in its owner's journal",
        (Edit(PARTS, "grace_seconds=config.store.journal_grace", "grace_seconds=0.0"),),
        (_TIMES + "test_lapsed_claim_waits_for_its_owners_journal",),
    ),
    Defect(
        "own-journal-forgotten",
        "what this gateway has yet to flush keeps nobody from taking its operation over",
        (
            Edit(
                PARTS,
                "store.durable_reachable_seconds if flusher.is_done else 0.0",
                "store.durable_reachable_seconds",
            ),
        ),
        (_TIMES + "test_doubt_waits_for_this_gateway_s_own_journal",),
    ),
    Defect(
        "always-steady",
        "the prober believes every clock of the store",
        (Edit(PARTS, "lambda: store.durable_steady_seconds", "lambda: float('inf')"),),
        (_TIMES + "test_a_404_frees_no_key_after_a_step_of_the_store_s_clock",),
    ),
    Defect(
        "retired-keys-dropped",
        "after a rotation of the fingerprint key every repeat is refused",
        (Edit(ROUTES, "keys[0] if keys else None, keys[1:])", "keys[0] if keys else None)"),),
        (_TIMES + "test_records_of_a_retired_fingerprint_key",),
    ),
    Defect(
        "resend-without-a-key",
        "what the upstream cannot recognise is sent again",
        (Edit(AGREEMENT, 'if recovery == "resend" and whole.key == "none":', "if False:"),),
        (_MISTAKES + "test_resend_to_an_upstream_that_gets_no_key",),
    ),
    Defect(
        "loops-over-ipv6",
        "a gateway that forwards to itself over IPv6 is started",
        (Edit(AGREEMENT, 'host in ("127.0.0.1", "::1") and', 'host == "127.0.0.1" and'),),
        (_MISTAKES + "test_an_upstream_that_is_the_gateway_itself",),
    ),
    Defect(
        "owed-drop-looked-up",
        "what was purged is answered from Redis while the drop is owed",
        (Edit("store/tiered.py", "not fast.up or self._drops.is_owed(operation_id):", "not fast.up:"),),
        (_TIERED + "test_a_copy_that_is_owed_a_drop_is_not_used",),
    ),
    Defect(
        "unanswered-purge-keeps-the-cache",
        "a purge whose answer was lost leaves the answer in the process",
        (
            Edit(
                "store/tiered.py",
                "self._cache.drop(operation_id, self._clock())\n                self._drops.owe",
                "self._drops.owe",
            ),
        ),
        (_TIERED + "test_a_purge_whose_answer_is_lost_is_not_answered_from_the_cache",),
    ),
    Defect(
        "used-tls-connections-may-have-bytes",
        "what arrived on an idle TLS connection answers the next request",
        (
            Edit(
                "proxy/upstream/connection.py",
                "return bool(pending) and not self.served and",
                "return bool(pending) and",
            ),
        ),
        ("tests/http/upstream/test_reuse.py::test_what_came_since_the_answer_over_tls[asyncio-an-answer]",),
    ),
    Defect(
        "sequence-moved-by-two",
        "gateways that note a lost memory at once can take the sequence of tokens back",
        (
            Edit(
                "store/postgres_upkeep.py",
                '                await connection.execute(f"SELECT pg_advisory_xact_lock({EPOCH_LOCK})")\n',
                "",
            ),
        ),
        ("tests/store/test_postgres_tokens.py::test_the_sequence_is_moved_by_one_at_a_time",),
    ),
)
