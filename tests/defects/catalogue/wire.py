"""Defects of the wire: what is sent, how often, and which bytes are taken for an answer."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

CLIENT = "upstream/client.py"
CONNECTION = "upstream/connection.py"
_QUIET = "return bool(pending) and not self.served and"
_FAULTS = "tests/http/upstream/test_faults.py::"
_REUSE = "tests/http/upstream/test_reuse.py::"

DEFECTS = (
    Defect(
        "client-sends-again",
        "the upstream client sends once more after a lost connection",
        (
            Edit(
                CLIENT,
                "        if isinstance(result, Lost):\n",
                "        if isinstance(result, Lost) and on_interim is None:\n"
                "            again = {'protected': protected, 'may_send': may_send, 'on_interim': lambda _: None}\n"
                "            return await self.exchange(request, body, **again)\n"
                "        if isinstance(result, Lost):\n",
            ),
        ),
        (_FAULTS + "test_a_connection_that_ends_while_the_request_is_read_is_in_doubt",),
    ),
    Defect(
        "lost-is-not-sent",
        "a connection that ended before an answer is taken for one on which nothing was sent",
        (
            Edit(
                CLIENT,
                "            return result\n",
                '            return NotSent(SentNothing.LOCAL, "lost")\n',
            ),
        ),
        (_FAULTS + "test_a_connection_that_ends_while_the_request_is_read_is_in_doubt",),
    ),
    Defect(
        "unsolicited-bytes-are-an-answer",
        "what arrived on an idle connection answers the next request",
        (Edit(CONNECTION, _QUIET, "return bool(pending) or not self.served and"),),
        (_REUSE + "test_what_came_since_the_answer_is_seen_before_the_first_byte[asyncio-an-answer]",),
    ),
    Defect(
        "reuse-without-a-look",
        "a connection is used again although its end is there to be read",
        (Edit(CONNECTION, _QUIET, "return not pending or not self.served and"),),
        (_REUSE + "test_what_came_since_the_answer_is_seen_before_the_first_byte[asyncio-fin]",),
    ),
    Defect(
        "used-connections-are-trusted",
        "a request goes out on a used connection that nobody has seen to last",
        (
            Edit(
                "upstream/pool.py",
                "return idle_seconds + _CLOSING_MARGIN_SECONDS <= limit",
                "return True",
            ),
        ),
        (_REUSE + "test_requests_use_fresh_connections_until_one_was_seen_to_last",),
    ),
    Defect(
        "one-deadline-at-a-time",
        "once the pool has looked at its connections, exchanges that were waiting wait for ever",
        (Edit("upstream/pool.py", "soonest = min(soonest, due)", "continue"),),
        ("tests/http/upstream/test_answers.py::test_exchanges_of_one_client_end_each_at_its_own_time[asyncio]",),
    ),
    Defect(
        "truncated-body-is-whole",
        "an answer that broke off is taken for what came of it",
        (
            Edit(
                "upstream/connection.py",
                "return BodyLost(self._loss.reason, self._loss.detail)\n            await self._expect(self.deadline)",
                "return self.take()\n            await self._expect(self.deadline)",
            ),
        ),
        (
            _FAULTS + "test_an_answer_cut_at_any_byte_is_never_taken_for_whole",
            "tests/http/gateway/test_outcomes.py::test_no_complete_response[sqlite-body-reset]",
        ),
    ),
    Defect(
        "lenient-heads",
        "a response head with control characters is passed on and stored",
        (
            Edit(
                "upstream/connection.py",
                "judge = self._judge = HttpResponseParser(None)\n",
                "judge = self._judge = HttpResponseParser(None)\n"
                "            judge.set_dangerous_leniencies(lenient_headers=True)\n",
            ),
        ),
        ("tests/http/upstream/test_parser.py::test_what_has_two_readings_is_no_answer[control-character-in-value]",),
    ),
    Defect(
        "reset-ends-an-answer",
        "an answer without a length is complete although a reset cut it",
        (
            Edit(
                CONNECTION,
                "            if exc is not None:\n                receiver.fail(Unknown.RESET",
                "            if receiver.framing.name == 'CLOSE':\n                receiver.is_done = True\n"
                "                receiver.wake()\n"
                "            elif exc is not None:\n                receiver.fail(Unknown.RESET",
            ),
        ),
        (_FAULTS + "test_an_answer_cut_at_any_byte_is_never_taken_for_whole",),
    ),
    Defect(
        "fin-ends-a-tls-answer",
        "over TLS an answer without a length is complete although nobody said so",
        (
            Edit(CONNECTION, 'return ssl_object.read(1) == b""', "return True"),
            Edit(
                CONNECTION,
                "        except ssl.SSLError:\n            return False",
                "        except ssl.SSLError:\n            return True",
            ),
        ),
        ("tests/http/upstream/test_tls.py::test_only_close_notify_completes_a_close_delimited_answer",),
    ),
    Defect(
        "truncation-ends-cleanly",
        "a streamed answer that broke off ends like a whole one",
        (Edit("protect/compose.py", "raise BodyCut(data.detail)", 'return b""'),),
        ("tests/http/gateway/test_outcomes.py::test_truncated_stream_breaks_visibly[sqlite]",),
    ),
    Defect(
        "hop-by-hop-forwarded",
        "fields of the client's connection reach the upstream",
        (Edit("protect/forwarding.py", 'folded in HOP_BY_HOP or folded == b"expect"', 'folded == b"expect"'),),
        ("tests/http/test_forwarding.py::test_hop_by_hop_fields_and_those_that_connection_names_stay",),
    ),
    Defect(
        "callers-speak-as-the-gateway",
        "a caller can send a fencing token of its own",
        (Edit("protect/forwarding.py", " or folded in SPOKEN_BY_GATEWAY:", ":"),),
        ("tests/http/test_forwarding.py::test_no_caller_speaks_as_the_gateway",),
    ),
    Defect(
        "trailers-of-others",
        "the trailer of one request is a field of the next one on its connection",
        (Edit("http/handler.py", "not (message.should_close or message.chunked or", "not (message.should_close or"),),
        ("tests/http/gateway/test_hostile.py::test_the_trailer_of_a_request_is_in_no_other[whole-protected]",),
    ),
    Defect(
        "bytes-lost-behind-an-upgrade",
        "what follows bytes that the parser dropped is taken for a request",
        (Edit("http/handler.py", '[b"h2c"] and connection.dropped_nothing', '[b"h2c"]'),),
        ("tests/http/gateway/test_hostile.py::test_what_follows_an_upgrade_is_never_torn[bodiless-h2c]",),
    ),
    Defect(
        "length-copied",
        "the length that the upstream declared is passed on beside our own",
        (
            Edit(
                "http/handler.py",
                'HOP_BY_HOP | {b"content-length", b"idempotency-status"}',
                'HOP_BY_HOP | {b"idempotency-status"}',
            ),
        ),
        ("tests/http/edge/test_server.py::test_framing_is_recomputed_and_never_copied",),
    ),
    Defect(
        "length-copied-upstream",
        "the length that the client declared is passed on beside our own",
        (Edit(CLIENT, '{b"content-length", b"expect"}', '{b"expect"}'),),
        ("tests/http/upstream/test_request.py::test_framing_is_recomputed",),
    ),
    Defect(
        "cookies-replayed",
        "whoever repeats a request gets the session that it opened",
        (
            Edit(
                "core/replay.py", 'frozenset((b"set-cookie", b"www-authenticate"))', 'frozenset((b"www-authenticate",))'
            ),
        ),
        ("tests/http/gateway/test_outcomes.py::test_personal_fields_are_the_first_callers[sqlite]",),
    ),
    Defect(
        "slow-tls-reader-cut-off",
        "what a client over TLS has not read half a minute after the answer is thrown away",
        (Edit("http/server.py", "ssl_shutdown_timeout=_TLS_CLOSE_SECONDS", "ssl_shutdown_timeout=None"),),
        (
            "tests/http/edge/test_server_readers.py::test_a_client_that_reads_slowly_gets_all_of_its_answer"
            "[asyncio-to-be-closed]",
        ),
    ),
    Defect(
        "disconnect-cancels",
        "an attempt is given up when its client goes",
        (
            Edit(
                "http/server.py",
                "        self._clients.pop(connection, None)\n",
                "        self._clients.pop(connection, None)\n"
                "        for busy in self.handler.busy:\n"
                "            busy.task.cancel()\n",
            ),
            Edit(
                "protect/coordinator.py",
                "                if request.owner is None and not request.is_executed",
                "                for one in self.operations.in_flight.values():\n"
                "                    if one is request.owner:\n"
                "                        one.task.cancel()\n"
                "                if request.owner is None and not request.is_executed",
            ),
        ),
        ("tests/http/gateway/test_outcomes.py::test_client_disconnect_cancels_nothing[sqlite]",),
    ),
    Defect(
        "kept-unredacted",
        "a response in which no value can be replaced is kept as it is",
        (
            Edit(
                "core/replay.py",
                "        if parse_json(body) is MISSING:\n            return None\n",
                "        if parse_json(body) is MISSING:\n            return body\n",
            ),
        ),
        (
            "tests/core/test_redaction.py::test_what_cannot_be_looked_into_is_not_kept",
            "tests/http/gateway/test_redaction.py::test_what_cannot_be_redacted_is_not_kept",
        ),
    ),
    Defect(
        "digest-of-redacted-kept",
        "a guess of a redacted value can be tested by a digest of the body",
        (Edit("core/replay.py", "header[0].lower() not in _OF_BODY", "header[0]"),),
        ("tests/core/test_redaction.py::test_a_digest_of_what_was_replaced_is_a_guess_away",),
    ),
    Defect(
        "redacted-for-those-that-wait",
        "callers that wait for the first response do not get its values",
        (
            Edit(
                "protect/compose.py",
                "verdict is Verdict.STORED and REDACTED_HEADER in",
                "False and REDACTED_HEADER in",
            ),
        ),
        ("tests/http/gateway/test_redaction.py::test_only_the_first_request_gets_the_values[sqlite]",),
    ),
)
