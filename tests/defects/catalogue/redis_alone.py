"""Defects of Redis as the durable store: each part of what it promises left out."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

_SCRIPT = "store/redis/lua/change.lua"
_PROMISE = "store/redis/primary.py"
_STORE = "store/redis/durable.py"
_TESTS = "tests/store/test_redis_alone.py::"
_NEWS = "tests/http/gateway/test_news_of_redis.py::"
_SUITE = "tests/conformance/"

DEFECTS = (
    Defect(
        "redis-alone-overwrites",
        "a record that changed since it was read is overwritten",
        (Edit(_SCRIPT, "if held ~= begins then", "if false then"),),
        (_SUITE + "test_races.py::test_of_many_claims_on_one_operation_one_is_granted[redis]",),
    ),
    Defect(
        "redis-alone-writes-after-a-flush",
        "what was read before a flush is written after it",
        (
            Edit(_SCRIPT, "if ARGV[1] ~= '' and memory[1] ~= ARGV[1] then", "if false then"),
            Edit(_SCRIPT, "if ARGV[3] ~= '' and ARGV[4] ~= '0' then", "if false then"),
            Edit(_STORE, "if identity != self._identity:", "if False:"),
        ),
        (_TESTS + "test_a_flush_is_noticed",),
    ),
    Defect(
        "redis-alone-forgets-tokens",
        "the token of a record that goes is not kept in the floor",
        (Edit("store/redis/layout.py", "if before is not None and is_new and before.token > floor:", "if False:"),),
        (_SUITE + "test_lifetime.py::test_a_restart_forgets_nothing[redis]",),
    ),
    Defect(
        "redis-alone-denies-what-took-effect",
        "what took effect is said not to be applied, because a later try of its neighbours failed",
        (Edit(_STORE, "                if not tries:\n                    raise", "                raise"),),
        (_TESTS + "test_what_took_effect_before_the_rest_of_its_batch_failed",),
    ),
    Defect(
        "redis-alone-waits-for-one",
        "one replica of several is enough for an acknowledgement",
        (
            Edit("store/redis/primary.py", "return reply >= self.replicas", "return reply >= 1"),
            Edit("store/redis/primary.py", "and reply[1] >= self.replicas", "and reply[1] >= 1"),
        ),
        (_TESTS + "test_a_replica_that_does_not_answer",),
    ),
    Defect(
        "redis-alone-takes-a-promotion-for-a-restart",
        "a promoted replica behind the same address is not judged",
        (Edit(_STORE, "return place == primary.place and not primary.server.has_history", "return True"),),
        (_TESTS + "test_a_promoted_replica[lossless]",),
    ),
    Defect(
        "promotion-without-a-judge",
        "a promoted server is believed where there is nobody to judge it",
        (Edit("store/memory/guard.py", "elif epoch.parent and why is None:", "elif False:"),),
        (_TESTS + "test_a_promotion_that_nobody_can_prove",),
    ),
    Defect(
        "redis-alone-without-a-log",
        "a server that keeps nothing on its disk is used",
        (Edit(_PROMISE, 'if settings["appendonly"] != "yes":', "if False:"),),
        (_TESTS + "test_a_server_that_promises_less[no log]",),
    ),
    Defect(
        "redis-alone-without-a-sync",
        "a server that syncs its log each second is used without waiting for its disk",
        (Edit(_PROMISE, """if settings["appendfsync"] != "always" and not self.has_waitaof:""", "if False:"),),
        (_TESTS + "test_a_log_that_is_not_synced_each_time",),
    ),
    Defect(
        "redis-alone-by-one-who-may-flush",
        "the gateway's user may delete everything",
        (Edit(_PROMISE, "if self.flushes:", "if False:"),),
        (_TESTS + "test_a_user_that_may_flush",),
    ),
    Defect(
        "redis-alone-for-payments",
        "payments are recorded in a memory",
        (
            Edit(
                "config/checks.py",
                """if outcome and outcome.preset == "payments":
            message = "payments needs""",
                """if False:
            message = "payments needs""",
            ),
        ),
        ("tests/config/test_mistakes.py::test_what_a_durable_redis_does_not_keep[payments]",),
    ),
    Defect(
        "a-refusal-of-one-gateway-is-an-outage",
        "a store that grants nothing to one gateway counts as away",
        (Edit("store/tiered.py", "        if error.is_partial:\n", "        if False:\n"),),
        ("tests/store/test_tiered.py::test_a_part_that_is_missing",),
    ),
    Defect(
        "a-promise-outlives-what-says-it",
        "a server that tells nothing any more is believed to promise what it did",
        (
            Edit(
                "store/redis/primary.py",
                '                self.why_not = f"what it promises is not known: {error}"\n',
                "                del error\n",
            ),
        ),
        (_TESTS + "test_a_server_that_says_nothing_any_more",),
    ),
    Defect(
        "beats-do-not-mind-the-memory",
        "a flush while nobody writes is taken for a gateway that was struck off, and stays unnoticed",
        (
            Edit(
                "store/redis/members.py",
                "            return None, change\n\n        await self._change(attempt, link",
                "            return None, change if document else None\n\n        await self._change(attempt, link",
            ),
        ),
        (_TESTS + "test_a_flush_while_nobody_writes",),
    ),
    Defect(
        "redis-alone-tells-nobody",
        "who waits at another gateway finds out by polling",
        (Edit(_STORE, "                news += _news(commands[place], result.snapshot.state)\n", ""),),
        (_NEWS + "test_a_duplicate_that_waits_at_another_gateway",),
    ),
    Defect(
        "redis-alone-purges-here-alone",
        "another gateway replies from its memory what was purged",
        (Edit("app/gateway.py", "PostgresStore) else durable.on_purge", "PostgresStore) else None"),),
        (_NEWS + "test_a_purge_reaches_what_another_gateway_remembers",),
    ),
    Defect(
        "redis-alone-without-news-in-silence",
        "a user that may not listen is not heard of",
        (Edit("store/redis/news.py", "if why != self._why_refused:", "if False:"),),
        (_TESTS + "test_a_user_that_may_not_listen",),
    ),
    Defect(
        "a-refused-store-fills-the-log",
        "why a store must not be used any more is said at each try",
        (Edit("store/memory/guard.py", "                if str(error) != refused:\n", "                if error:\n"),),
        ("tests/store/test_guard.py::test_a_store_that_must_not_be_used_any_more",),
    ),
    Defect(
        "redis-alone-ends-without-its-replicas",
        "a gateway that starts while a replica is missing ends",
        (
            Edit(
                "store/redis/primary.py",
                "if refused := self.server.why_not(self._configured):",
                "if refused := self.why_not:",
            ),
        ),
        (_TESTS + "test_replicas_that_nobody_counted",),
    ),
    Defect(
        "redis-alone-is-silent-when-full",
        "nobody who starts while the memory is full can read what it has",
        (Edit("store/redis/layout.py", "    change.free()\n", ""),),
        (_TESTS + "test_a_memory_that_is_full",),
    ),
)
