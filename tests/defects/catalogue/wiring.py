"""Defects of the wiring: parts that work, and are given something else than the configuration says."""

from __future__ import annotations

from tests.defects.defect import read

DEFECTS = read(r"""
encryption-left-out: a gateway with keys has its store keep everything in clear
  app/parts.py tests/http/gateway/test_encryption.py::test_a_rotation[sqlite]
-            self.serving,
-            sealing=sealing,
+            self.serving,
no-time-to-settle: a probe's 404 frees the key as soon as the lease ends, with the request still on its way
  config/delivery.py tests/http/gateway/test_times.py::test_a_404_frees_the_key_once_no_request_can_arrive
-settle_us=microseconds(upstream.settle if self.settle is None else self.settle),
+settle_us=0,
no-grace-for-journals: a lapsed claim is taken over at once, with its outcome in its owner's journal
  app/parts.py tests/http/gateway/test_times.py::test_lapsed_claim_waits_for_its_owners_journal
-grace_seconds=config.store.journal_grace
+grace_seconds=0.0
journals-forgotten: an operation is taken over whose response is in a journal of this host
  protect/claiming.py tests/http/gateway/test_times.py::test_what_a_journal_of_this_host_knows_is_not_taken_over
-                    if await self.is_known(identity.operation_id):
-                        return admission
-
always-steady: the prober believes every clock of the store
  app/parts.py tests/http/gateway/test_times.py::test_a_404_frees_no_key_after_a_step_of_the_store_s_clock
-lambda: store.steadiness.steady_seconds(clock())
+lambda: float('inf')
retired-keys-dropped: after a rotation of the fingerprint key every repeat is refused
  protect/route.py tests/http/gateway/test_identity_change.py::test_a_fingerprint_key_that_is_lost[sqlite-another]
-keys[0] if keys else None, keys[1:])
+keys[0] if keys else None)
resend-without-a-key: what the upstream cannot recognise is sent again
  config/checks.py tests/config/test_mistakes.py::test_resend_to_an_upstream_that_gets_no_key
-if recovery == "resend" and merged.key == "none":
+if False:
loops-over-ipv6: a gateway that forwards to itself over IPv6 is started
  config/checks.py tests/config/test_mistakes.py::test_an_upstream_that_is_the_gateway_itself
-host in ("127.0.0.1", "::1") and
+host == "127.0.0.1" and
untold-purge-looked-up: what was purged is answered from Redis while that has still to be told of it
  store/redis/store.py tests/store/test_redis.py::test_a_purge_that_cannot_be_told_silences_the_tier
-self._keys = keys
-        self._forget_eras(self._buckets)
+self._keys = keys
unanswered-purge-keeps-the-cache: a purge whose answer was lost leaves the answer in the process
  store/tiered.py tests/store/test_tiered.py::test_what_was_not_answered_is_no_copy[purged]
-            self._forget_here(command)
-            if
+            if
used-tls-connections-may-have-bytes: what arrived on an idle TLS connection answers the next request
  upstream/connection.py
  tests/http/upstream/test_reuse.py::test_what_came_since_the_answer_is_seen_before_the_first_byte[asyncio-answer-tls]
-return bool(pending) and not self.served and
+return bool(pending) and
sequence-moved-by-two: gateways that note a lost memory at once can take the sequence of tokens back
  store/postgres/store.py tests/store/test_postgres_fences.py::test_the_sequence_is_moved_by_one_at_a_time
-                await connection.execute(f"SELECT pg_advisory_xact_lock({EPOCH_LOCK})")
claims-of-another-length: claims last as long as somebody thought, whatever the configuration says
  app/parts.py tests/app/test_settings.py::test_a_setting_changes_what_is_seen[store.lease-10s]
-            lease_seconds=lease_seconds,
-            grace
+            lease_seconds=30.0,
+            grace
amnesia-for-as-long-as-the-default: after a loss absent keys are refused for another time than was asked for
  app/stores.py tests/app/test_settings.py::test_a_setting_changes_what_is_seen[store.amnesia_window-1m]
-longest_seconds if config.store.amnesia_window is None else config.store.amnesia_window
+longest_seconds
deliveries-of-a-stalled-loop: a gateway that stood still goes on claiming what is to be delivered
  app/parts.py tests/deliver/test_worker.py::test_a_stalled_loop_delivers_nothing
-            is_stalled=self.leases.is_stalled,
+            is_stalled=lambda: False,
journals-of-every-database: what waits in the journal for one database is written into another one
  app/stores.py tests/app/test_gateway.py::test_whose_journals_these_are[database]
-urlsplit(dsn.get_secret_value()).path.strip('/')
+''
amnesia-for-as-long-as-the-shortest: after a loss, keys of a route that remembers them longer than another one run again
  app/stores.py tests/app/test_settings.py::test_how_long_absent_keys_are_refused
-longest_seconds = max(
+longest_seconds = min(
identity-changes-accepted: a start that forgets living keys is let pass unasked
  app/stores.py tests/app/test_settings.py::test_a_setting_changes_what_is_seen[routes.identity_change-refuse]
-if route.identity_change == "accept")
+if route.identity_change)
forgotten-with-the-answer: a key is free again once its answer is gone
  config/route.py tests/app/test_settings.py::test_a_setting_changes_what_is_seen[routes.retention.remember-1h]
-return microseconds(self.remember)
+return microseconds(self.replay)
always-forwarded: without the store every request goes on unprotected
  protect/route.py tests/app/test_settings.py::test_a_setting_changes_what_is_seen[routes.store_unavailable-refuse]
-route.store_unavailable == "forward"
+True
anybody-names-the-caller: the field that names the caller is believed from everywhere
  config/route.py tests/app/test_settings.py::test_a_setting_changes_what_is_seen[routes.scope.from-['10.0.0.0/8']]
-None if self.from_ == "any" else self.from_
+None
settle-shorter-than-the-wire: a time to settle is taken in which a request may still arrive
  config/checks.py tests/config/test_mistakes.py::test_a_time_to_settle_in_which_the_request_may_still_arrive
-probe.settle < merged.settle:
+probe.settle < merged.response_timeout:
nobody-probes-in-the-background: what is in doubt stays so until somebody asks for it again
  app/parts.py tests/http/gateway/test_recovery.py::test_background_probe
-            self._recovery.run(),
-
drained-for-another-time: what is in flight at a stop gets another time than was asked for
  app/parts.py tests/app/test_settings.py::test_a_setting_changes_what_is_seen[shutdown.drain_timeout-0s]
-self.config.shutdown.drain_timeout
+30.0
nobody-renews: no lease is renewed, so that every slow operation comes into doubt
  app/gateway.py tests/http/gateway/test_times.py::test_a_slow_operation_keeps_its_claim
-            self._tasks.spawn(self.parts.leases.run())
refused-reload-ends-what-serves: what a reload put in force is given up by the next one that is refused before workers
    prepare anything
  app/worker.py tests/app/test_reload.py::test_a_port_that_is_taken[two-workers]
-            self._preparing = None
-            self.switch(
+            self.switch(
reload-of-half-the-workers: a worker that cannot use a configuration keeps none of the others from switching to it
  app/supervisor.py tests/app/test_reload.py::test_bad_files_change_nothing[two-workers]
-        if refusals:
+        if not refusals and late:
reload-forgets-living-keys: a reload renames a route, and nobody looks for its keys
  app/gateway.py tests/app/test_reload.py::test_a_renamed_route_with_living_keys_is_refused
-raise _must_not_be_used(error) from error
+return False
reload-keeps-the-certificate: a new certificate is read, and connections go on getting the old one
  http/server.py tests/app/test_reload.py::test_a_certificate_is_rotated[one-process]
-self.settings, self._tls = settings, tls
+self.settings, self._tls = settings, self._tls or tls
replacement-with-the-first-configuration: a worker that dies after a reload is replaced with what was in force at the
    start
  app/supervisor.py tests/app/test_reload.py::test_a_worker_that_dies_gets_what_is_in_force
-            self.config, self._journal, self._status = config, journals_of(config).view, status
+            self._journal, self._status = journals_of(config).view, status
reload-encrypts-with-the-old-key: a key that was put first by a reload encrypts nothing
  app/stores.py tests/app/test_reload.py::test_an_encryption_key_is_rotated[one-process]
-KeyRing(keys, os.urandom)
+KeyRing(keys[::-1], os.urandom)
reload-drops-a-key-in-use: a key is taken out by a reload while records need it
  store/sealed.py tests/app/test_reload.py::test_an_encryption_key_is_rotated[one-process]
-if why := why_unreadable(
+if False and why_unreadable(
renewed-authorities-are-not-read: the authorities of an upstream are those of the start, whatever its file has become
  app/host.py tests/app/test_reload.py::test_files_are_looked_at[one-process]
-        for files in _named(config)
+        for files in _named(config)
+        if files.path == "listen.tls"
reload-keeps-every-generation: what served before a reload, with its stores, stays as long as a request lasts, however
    many there are
  app/worker.py tests/app/test_reload.py::test_what_is_earlier_is_bounded[one-process]
-[:-_EARLIER_MAX]
+[:0]
hang-up-is-a-reload: a gateway whose terminal is gone goes on without one
  app/life.py tests/app/test_reload.py::test_a_terminal_that_hangs_up[one-process]
-if _is_terminal_gone():
+if False:
hang-up-while-loading-ends-it: a reload that is wanted before anything of the gateway exists stops it
  __main__.py tests/app/test_reload.py::test_a_hangup_while_the_program_loads[reload]
-    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
-
signal-during-the-start-is-lost: a reload that is wanted while workers start never happens
  app/life.py tests/app/test_reload.py::test_a_reload_that_is_wanted_during_the_start
-        if self._wants_reload:
+        if False:
""")
