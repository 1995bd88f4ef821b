"""Defects of observing: an observed request that notices it, traces that strangers steer, uploads in the clear."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

_TRACING = "tests/observe/test_tracing.py::"
_OBSERVE = "tests/http/gateway/test_observe.py::"

DEFECTS = (
    Defect(
        "observed-is-refused",
        "an ambiguous request on an observed route is refused",
        (
            Edit(
                "protect/ambiguity.py",
                "route is not None and not route.is_observed:\n        fault",
                "route is not None:\n        fault",
            ),
        ),
        (_OBSERVE + "test_nobody_notices",),
    ),
    Defect(
        "observed-is-replayed",
        "a request on an observed route is protected, and gets a replay",
        (
            Edit(
                "http/handler.py",
                "        if route is not None and route.is_observed:\n",
                "        if False and route is not None and route.is_observed:\n",
            ),
        ),
        (_OBSERVE + "test_enforcing_starts_with_no_memory",),
    ),
    Defect(
        "share-by-request",
        "each request is enforced or observed by itself, and not by its key",
        (
            Edit(
                "protect/route.py",
                'digest(b"share", operation.encode(), key.digest)',
                '__import__("os").urandom(32)',
            ),
        ),
        (_OBSERVE + "test_a_key_stays_on_its_side",),
    ),
    Defect(
        "observed-waits-for-the-store",
        "an observed request waits until what was seen of it is stored",
        (
            Edit(
                "http/passthrough.py",
                "        return reply if sighting is None else sighting.answered(result, reply)\n",
                "        if sighting is not None:\n"
                "            reply = sighting.answered(result, reply)\n"
                "            await self._observing._flush([sighting])\n"
                "        return reply\n",
            ),
        ),
        (_OBSERVE + "test_no_request_waits_for_the_table",),
    ),
    Defect(
        "observed-meets-the-bug",
        "a bug of what observes a request ends the request",
        (
            Edit(
                "protect/observing.py",
                "            step(sighting, *args, **kwargs)\n        except Exception:",
                "            step(sighting, *args, **kwargs)\n        except AssertionError:",
            ),
        ),
        (_OBSERVE + "test_a_bug_of_the_observer_reaches_nobody",),
    ),
    Defect(
        "forged-trace-is-sampled",
        "a trace id that a caller forged has the deliveries and probes of its request sampled",
        (
            Edit(
                "observe/tracing.py",
                "(trace_id is not None and self._is_ours(trace_id))",
                "(trace_id is not None and int(trace_id[16:], 16) < self._drawn_below)",
            ),
        ),
        (_TRACING + "test_a_stranger_has_nothing_that_follows_sampled",),
    ),
    Defect(
        "reload-forgets-what-was-sampled",
        "without a secret, what began before a reload is taken for a stranger's after it",
        (Edit("app/traffic.py", "if keys else _OWN_SECRET", "if keys else os.urandom(32)"),),
        (_TRACING + "test_what_was_sampled_is_followed_after_a_reload",),
    ),
    Defect(
        "stranger-decides-what-is-traced",
        "the traceparent of a peer that is not trusted is the parent, and decides",
        (
            Edit(
                "observe/tracing.py",
                "(self._accepts_all or _is_in(hop.peer, self._trusted))",
                "True",
            ),
        ),
        (_TRACING + "test_a_stranger_decides_nothing",),
    ),
    Defect(
        "replay-links-elsewhere",
        "a repeat links to another attempt than the one whose response it got",
        (Edit("observe/tracing.py", "fact.attempt - is_resend)", "fact.attempt + 1)"),),
        (_TRACING + "test_a_repeat_links_to_the_attempt_that_ran",),
    ),
    Defect(
        "upload-in-a-file",
        "an upload of the console is kept in a temporary file",
        (
            Edit(
                "admin/access.py",
                '    if request.content_type != "multipart/form-data":\n',
                "    if await request.post() is not None:\n",
            ),
        ),
        ("tests/admin/test_console.py::test_an_upload_is_in_no_file",),
    ),
    Defect(
        "spoofed-header-is-believed",
        "whoever reaches the console directly is whom a header names",
        (Edit("admin/vouching.py", "if not _is_within(peer, networks):", "if peer is None:"),),
        ("tests/admin/test_sign_in.py::test_a_spoofed_header",),
    ),
    Defect(
        "token-is-read-and-not-verified",
        "a signed token names a person for the console, whoever signed it",
        (Edit("admin/vouching.py", "isinstance(found, ScopeMissing | IdentityUnavailable)", "found is None"),),
        ("tests/admin/test_sign_in.py::test_a_token_that_names_nobody",),
    ),
    Defect(
        "bearer-behind-a-proxy-needs-no-form",
        "what a proxy adds to the requests of a browser is taken for the token of a program",
        (
            Edit(
                "admin/access.py",
                "if values and not (self._vouchers and is_page(request) and _is_of_a_proxy(values)):",
                "if values:",
            ),
        ),
        ("tests/admin/test_sign_in.py::test_a_token_names_a_person",),
    ),
    Defect(
        "many-whatever-matches-by-now",
        "dead letters are decided about that nobody has seen: others match by now",
        (Edit("admin/actions.py", "if asked.matching not in (None, bulk.matching):", "if asked.matching == 0:"),),
        ("tests/admin/test_pages.py::test_another_number_by_now",),
    ),
    Defect(
        "preview-shows-what-was-redacted",
        "the preview of a resolution shows the response as it was pasted, with the values that are not kept",
        (
            Edit(
                "admin/pages/console.py",
                "body = whole if response.body is None else response.body",
                "body = whole or response.body or b''",
            ),
        ),
        ("tests/admin/test_pages.py::test_what_is_redacted_is_not_shown",),
    ),
    Defect(
        "observed-is-given-less-time",
        "the probe of an observed route, which never probes, bounds how long its responses may take",
        (Edit("protect/route.py", "route.upstream.over(config.upstream)", "config.upstream_for(route)"),),
        (_OBSERVE + "test_a_slow_response_is_waited_for",),
    ),
    Defect(
        "observed-tunnels-are-judged",
        "a connection that became a tunnel counts as a request that enforcing would have answered",
        (Edit("protect/observing.py", "        self.is_whole = False\n        self.end(", "        self.end("),),
        (_OBSERVE + "test_nobody_notices_on_the_wire",),
    ),
)
