"""Defects of the wiring: parts that work, and are given something else than the configuration says."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

PARTS = "app/parts.py"
ROUTES = "protect/route.py"
CHECKS = "config/checks.py"
_TIMES = "tests/http/gateway/test_times.py::"
_MISTAKES = "tests/config/test_mistakes.py::"
_SETTINGS = "tests/app/test_settings.py::test_a_setting_changes_what_is_seen["
_RELOADS = "tests/app/test_reload.py::"
_TIERED = "tests/store/test_tiered.py::"

DEFECTS = (
    Defect(
        "encryption-left-out",
        "a gateway with keys has its store keep everything in clear",
        (Edit(PARTS, "        serving,\n        sealing=sealing,", "        serving,"),),
        ("tests/http/gateway/test_encryption.py::test_who_has_the_key_replays[sqlite]",),
    ),
    Defect(
        "no-time-to-settle",
        "a probe's 404 frees the key as soon as the lease ends, with the request still on its way",
        (
            Edit(
                "config/upstream.py",
                "settle_us=microseconds(upstream.settle if self.settle is None else self.settle),",
                "settle_us=0,",
            ),
        ),
        (_TIMES + "test_a_404_frees_the_key_once_no_request_can_arrive",),
    ),
    Defect(
        "no-grace-for-journals",
        "a lapsed claim is taken over at once, with its outcome in its owner's journal",
        (Edit(PARTS, "grace_seconds=config.store.journal_grace", "grace_seconds=0.0"),),
        (_TIMES + "test_lapsed_claim_waits_for_its_owners_journal",),
    ),
    Defect(
        "journals-forgotten",
        "an operation is taken over whose response is in a journal of this host",
        (
            Edit(
                "protect/claiming.py",
                "                    if await self.is_known(identity.operation_id):\n"
                "                        return admission\n",
                "",
            ),
        ),
        (_TIMES + "test_what_a_journal_of_this_host_knows_is_not_taken_over",),
    ),
    Defect(
        "always-steady",
        "the prober believes every clock of the store",
        (Edit(PARTS, "lambda: store.steadiness.steady_seconds(clock())", "lambda: float('inf')"),),
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
        (Edit(CHECKS, 'if recovery == "resend" and merged.key == "none":', "if False:"),),
        (_MISTAKES + "test_resend_to_an_upstream_that_gets_no_key",),
    ),
    Defect(
        "loops-over-ipv6",
        "a gateway that forwards to itself over IPv6 is started",
        (Edit(CHECKS, 'host in ("127.0.0.1", "::1") and', 'host == "127.0.0.1" and'),),
        (_MISTAKES + "test_an_upstream_that_is_the_gateway_itself",),
    ),
    Defect(
        "untold-purge-looked-up",
        "what was purged is answered from Redis while that has still to be told of it",
        (
            Edit(
                "store/redis/node.py",
                "self._keys = keys\n        self._forget_eras(self._buckets)\n",
                "self._keys = keys\n",
            ),
        ),
        ("tests/store/test_redis.py::test_a_purge_that_cannot_be_told_silences_the_tier",),
    ),
    Defect(
        "unanswered-purge-keeps-the-cache",
        "a purge whose answer was lost leaves the answer in the process",
        (
            Edit(
                "store/tiered.py",
                "        if isinstance(command, _PURGING):\n            self._forget_here(command)\n            if",
                "        if isinstance(command, _PURGING):\n            if",
            ),
        ),
        (_TIERED + "test_a_purge_whose_answer_is_lost_is_not_answered_from_the_cache",),
    ),
    Defect(
        "used-tls-connections-may-have-bytes",
        "what arrived on an idle TLS connection answers the next request",
        (
            Edit(
                "upstream/connection.py",
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
                "store/postgres/member.py",
                '                await connection.execute(f"SELECT pg_advisory_xact_lock({EPOCH_LOCK})")\n',
                "",
            ),
        ),
        ("tests/store/test_postgres_tokens.py::test_the_sequence_is_moved_by_one_at_a_time",),
    ),
    Defect(
        "claims-of-another-length",
        "claims last as long as somebody thought, whatever the configuration says",
        (
            Edit(
                PARTS,
                "        lease_seconds=lease_seconds,\n        grace",
                "        lease_seconds=30.0,\n        grace",
            ),
        ),
        (_SETTINGS + "store.lease-10s]",),
    ),
    Defect(
        "amnesia-for-as-long-as-the-default",
        "after a loss absent keys are refused for another time than was asked for",
        (
            Edit(
                "app/stores.py",
                "longest_seconds if config.store.amnesia_window is None else config.store.amnesia_window",
                "longest_seconds",
            ),
        ),
        (_SETTINGS + "store.amnesia_window-1m]",),
    ),
    Defect(
        "deliveries-of-a-stalled-loop",
        "a gateway that stood still goes on claiming what is to be delivered",
        (
            Edit(
                PARTS,
                "        is_stalled=leases.is_stalled,\n        clock=clock,\n",
                "        is_stalled=lambda: False,\n        clock=clock,\n",
            ),
        ),
        ("tests/deliver/test_worker.py::test_a_stalled_loop_delivers_nothing",),
    ),
    Defect(
        "journals-of-every-database",
        "what waits in the journal for one database is written into another one",
        (Edit("app/stores.py", "urlsplit(dsn.get_secret_value()).path.strip('/')", "''"),),
        ("tests/app/test_gateway.py::test_whose_journals_these_are[database]",),
    ),
    Defect(
        "amnesia-for-as-long-as-the-shortest",
        "after a loss, keys of a route that remembers them longer than another one run again",
        (Edit("app/stores.py", "longest_seconds = max(", "longest_seconds = min("),),
        ("tests/app/test_settings.py::test_how_long_absent_keys_are_refused",),
    ),
    Defect(
        "identity-changes-accepted",
        "a start that forgets living keys is let pass unasked",
        (Edit("app/stores.py", 'if route.identity_change == "accept")', "if route.identity_change)"),),
        (_SETTINGS + "routes.identity_change-refuse]",),
    ),
    Defect(
        "forgotten-with-the-answer",
        "a key is free again once its answer is gone",
        (Edit("config/route.py", "return microseconds(self.remember)", "return microseconds(self.replay)"),),
        (_SETTINGS + "routes.retention.remember-1h]",),
    ),
    Defect(
        "always-forwarded",
        "without the store every request goes on unprotected",
        (Edit(ROUTES, 'route.store_unavailable == "forward"', "True"),),
        (_SETTINGS + "routes.store_unavailable-refuse]",),
    ),
    Defect(
        "anybody-names-the-caller",
        "the field that names the caller is believed from everywhere",
        (Edit("config/scope.py", 'None if self.from_ == "any" else self.from_', "None"),),
        (_SETTINGS + "routes.scope.from-['10.0.0.0/8']]",),
    ),
    Defect(
        "settle-shorter-than-the-wire",
        "a time to settle is taken in which a request may still arrive",
        (
            Edit(
                CHECKS, "least = merged.response_timeout + TCP_USER_TIMEOUT_SECONDS", "least = merged.response_timeout"
            ),
        ),
        (_MISTAKES + "test_a_time_to_settle_in_which_the_request_may_still_arrive",),
    ),
    Defect(
        "nobody-probes-in-the-background",
        "what is in doubt stays so until somebody asks for it again",
        (Edit(PARTS, "            self._recovery.run(),\n", ""),),
        ("tests/http/gateway/test_recovery.py::test_background_probe[sqlite]",),
    ),
    Defect(
        "drained-for-another-time",
        "what is in flight at a stop gets another time than was asked for",
        (Edit(PARTS, "self.config.shutdown.drain_timeout", "30.0"),),
        (_SETTINGS + "shutdown.drain_timeout-0s]",),
    ),
    Defect(
        "nobody-renews",
        "no lease is renewed, so that every slow operation comes into doubt",
        (Edit("app/gateway.py", "            self._spawn(self._parts.leases.run())\n", ""),),
        (_TIMES + "test_a_slow_operation_keeps_its_claim",),
    ),
    Defect(
        "refused-reload-ends-what-serves",
        "what a reload put in force is given up by the next one that is refused before workers prepare anything",
        (
            Edit(
                "app/worker.py",
                "            self._preparing = None\n            self.switch(",
                "            self.switch(",
            ),
        ),
        (_RELOADS + "test_a_port_that_is_taken[two-workers]",),
    ),
    Defect(
        "reload-of-half-the-workers",
        "a worker that cannot use a configuration keeps none of the others from switching to it",
        (Edit("app/supervisor.py", "        if refusals:\n", "        if not refusals and late:\n"),),
        (_RELOADS + "test_bad_files_change_nothing[two-workers]",),
    ),
    Defect(
        "reload-forgets-living-keys",
        "a reload renames a route, and nobody looks for its keys",
        (Edit("app/gateway.py", "raise _must_not_be_used(error) from error\n        if", "return False\n        if"),),
        (_RELOADS + "test_a_renamed_route_with_living_keys_is_refused",),
    ),
    Defect(
        "reload-keeps-the-certificate",
        "a new certificate is read, and connections go on getting the old one",
        (
            Edit(
                "http/server.py",
                "self.settings, self._tls = settings, tls",
                "self.settings, self._tls = settings, self._tls or tls",
            ),
        ),
        (_RELOADS + "test_a_certificate_is_rotated[one-process]",),
    ),
    Defect(
        "replacement-with-the-first-configuration",
        "a worker that dies after a reload is replaced with what was in force at the start",
        (
            Edit(
                "app/supervisor.py",
                "            self._config, self._journal, self._status = config, journal_view(config), status\n",
                "            self._journal, self._status = journal_view(config), status\n",
            ),
        ),
        (_RELOADS + "test_a_worker_that_dies_gets_what_is_in_force",),
    ),
    Defect(
        "reload-encrypts-with-the-old-key",
        "a key that was put first by a reload encrypts nothing",
        (Edit("app/stores.py", "KeyRing(keys, os.urandom)", "KeyRing(keys[::-1], os.urandom)"),),
        (_RELOADS + "test_an_encryption_key_is_rotated[one-process]",),
    ),
    Defect(
        "reload-drops-a-key-in-use",
        "a key is taken out by a reload while records need it",
        (Edit("store/sealed.py", "if why := why_unreadable(", "if False and why_unreadable("),),
        (_RELOADS + "test_an_encryption_key_is_rotated[one-process]",),
    ),
    Defect(
        "renewed-authorities-are-not-read",
        "the authorities of an upstream are those of the start, whatever its file has become",
        (
            Edit(
                "app/host.py",
                "        for files in _named(config)\n        for path",
                '        for files in _named(config)\n        if files.path == "listen.tls"\n        for path',
            ),
        ),
        (_RELOADS + "test_files_are_looked_at[one-process]",),
    ),
    Defect(
        "reload-keeps-every-generation",
        "what served before a reload, with its stores, stays as long as a request lasts, however many there are",
        (Edit("app/serve.py", "[:-_EARLIER_MAX]", "[:0]"),),
        (_RELOADS + "test_what_is_earlier_is_bounded[one-process]",),
    ),
    Defect(
        "hang-up-is-a-reload",
        "a gateway whose terminal is gone goes on without one",
        (Edit("app/life.py", "if _is_terminal_gone():", "if False:"),),
        (_RELOADS + "test_a_terminal_that_hangs_up[one-process]",),
    ),
    Defect(
        "hang-up-while-loading-ends-it",
        "a reload that is wanted before anything of the gateway exists stops it",
        (Edit("__main__.py", "    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})\n", ""),),
        (_RELOADS + "test_a_hangup_while_the_program_loads[reload]",),
    ),
    Defect(
        "signal-during-the-start-is-lost",
        "a reload that is wanted while workers start never happens",
        (Edit("app/life.py", "        if self._wants_reload:\n", "        if False:\n"),),
        (_RELOADS + "test_a_reload_that_is_wanted_during_the_start",),
    ),
)
