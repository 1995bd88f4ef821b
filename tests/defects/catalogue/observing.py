"""Defects of observing: an observed request that notices it, traces that strangers steer, uploads in the clear."""

from __future__ import annotations

from tests.defects.defect import read

DEFECTS = read(r"""
observed-is-refused: an ambiguous request on an observed route is refused
  protect/ambiguity.py tests/http/gateway/test_observe.py::test_nobody_notices
-route is not None and not route.is_observed:
+route is not None:
observed-is-replayed: a request on an observed route is protected, and gets a replay
  http/handler.py tests/http/gateway/test_observe.py::test_enforcing_starts_with_no_memory
-        if route is not None and route.is_observed:
+        if False and route is not None and route.is_observed:
share-by-request: each request is enforced or observed by itself, and not by its key
  protect/route.py tests/http/gateway/test_observe.py::test_a_key_stays_on_its_side
-digest(b"share", operation.encode(), key.digest)
+__import__("os").urandom(32)
observed-waits-for-the-store: an observed request waits until what was seen of it is stored
  http/passthrough.py tests/http/gateway/test_observe.py::test_nobody_notices
-        return reply if sighting is None else sighting.answered(result, reply)
+        if sighting is not None:
+            reply = sighting.answered(result, reply)
+            await self._observing._flush([sighting])
+        return reply
observed-meets-the-bug: a bug of what observes a request ends the request
  protect/observing.py tests/http/gateway/test_observe.py::test_a_bug_of_the_observer_reaches_nobody
-            step(sighting, *args, **kwargs)
-        except Exception:
+            step(sighting, *args, **kwargs)
+        except AssertionError:
forged-trace-is-sampled: a trace id that a caller forged has the deliveries and probes of its request sampled
  observe/tracing.py tests/observe/test_tracing.py::test_a_stranger_has_nothing_that_follows_sampled
-(trace_id is not None and self._is_ours(trace_id))
+(trace_id is not None and int(trace_id[16:], 16) < self._drawn_below)
reload-forgets-what-was-sampled: without a secret, what began before a reload is taken for a stranger's after it
  app/parts.py tests/observe/test_tracing.py::test_what_was_sampled_is_followed_after_a_reload
-if keys else _OWN_SECRET
+if keys else os.urandom(32)
stranger-decides-what-is-traced: the traceparent of a peer that is not trusted is the parent, and decides
  observe/tracing.py tests/observe/test_tracing.py::test_a_stranger_decides_nothing
-(self.accepts_all or is_within(hop.peer, self.trusted))
+True
replay-links-elsewhere: a repeat links to another attempt than the one whose response it got
  observe/tracing.py tests/observe/test_tracing.py::test_a_repeat_links_to_the_attempt_that_ran
-fact.attempt - is_resend)
+fact.attempt + 1)
upload-in-a-file: an upload of the console is kept in a temporary file
  admin/access.py tests/admin/test_console.py::test_an_upload_is_in_no_file
-    if request.content_type != "multipart/form-data":
+    if await request.post() is not None:
spoofed-header-is-believed: whoever reaches the console directly is whom a header names
  admin/access.py tests/admin/test_sign_in.py::test_a_spoofed_header
-if address is None or not any(address in network for network in proxy.from_):
+if peer is None:
token-is-read-and-not-verified: a signed token names a person for the console, whoever signed it
  admin/access.py tests/admin/test_sign_in.py::test_a_token_that_names_nobody
-isinstance(found, ScopeMissing | IdentityUnavailable)
+found is None
bearer-behind-a-proxy-needs-no-form: what a proxy adds to the requests of a browser is taken for the token of a program
  admin/access.py tests/admin/test_sign_in.py::test_a_token_names_a_person
-if values and not (self._vouchers and is_page(request) and _is_of_a_proxy(values)):
+if values:
many-whatever-matches-by-now: dead letters are decided about that nobody has seen: others match by now
  admin/actions.py tests/admin/test_pages.py::test_another_number_by_now
-if asked.matching not in (None, bulk.matching):
+if asked.matching == 0:
preview-shows-what-was-redacted: the preview of a resolution shows the response as it was pasted, with the values that
    are not kept
  admin/console.py tests/admin/test_pages.py::test_what_is_redacted_is_not_shown
-body = whole if response.body is None else response.body
+body = whole or response.body or b''
observed-is-given-less-time: the probe of an observed route, which never probes, bounds how long its responses may take
  protect/route.py tests/http/gateway/test_observe.py::test_a_slow_response_is_waited_for
-route.upstream.over(config.upstream)
+config.upstream_for(route)
observed-tunnels-are-judged: a connection that became a tunnel counts as a request that enforcing would have answered
  protect/observing.py tests/http/gateway/test_observe.py::test_nobody_notices
-        self.is_whole = False
-        self.end(
+        self.end(
""")
