"""Defects of inboxes: who sent an event, which one it is, and what its sender is told."""

from __future__ import annotations

from tests.defects.defect import read

DEFECTS = read(r"""
unsigned-events: whoever knows the address of an inbox has events delivered
  core/webhook.py tests/core/test_inbox.py::test_the_message_does_not_choose_the_algorithm
-    if not signers:
-        return Refused(Fault.INVALID)
-
events-from-the-future: a message that was signed for later can be sent again until then
  core/webhook.py tests/http/gateway/test_inbox.py::test_what_cannot_be_an_event
-abs(now - signed_at) > tolerance_seconds
+now - signed_at > tolerance_seconds
ended-secrets-count: a secret that was given away and replaced still signs events
  core/webhook.py tests/core/test_inbox.py::test_every_living_secret_is_tried
-if secret.until is None or now < secret.until]
+]
ids-that-nobody-signed: an old message is a new event under an id that its sender never saw
  core/webhook.py tests/http/gateway/test_inbox.py::test_ids_that_are_not_signed
-key = ContentKey() if guards_content else scheme.key
+key = scheme.key
what-an-event-is: an order that is paid is taken for the same order when it was created, acknowledged and never
    delivered
  core/webhook.py tests/http/gateway/test_inbox.py::test_what_the_sender_says_beside_the_body
-    if not scheme.about or isinstance(key
+    if True or isinstance(key
ids-of-another-scheme: an old message is a new event when a header of another scheme comes with it
  core/webhook.py tests/core/test_inbox.py::test_a_further_id_of_another_scheme_changes_nothing
-spec = event_key(scheme, guards_content=inbox.guards_content)
+spec = inbox.key
acknowledged-before-stored: an event that could not be stored is acknowledged, and nobody sends it again
  protect/inbox.py tests/http/gateway/test_inbox.py::test_the_store_is_down
-                return found if known is None else await
+                return _acknowledged(inbox, found.verdict) if known is None else await
changed-events-refused: a sender that counts in its events gives up the endpoint
  protect/inbox.py tests/http/gateway/test_inbox.py::test_a_repeat_is_acknowledged_in_every_state[changed-completed]
-if inbox.refuses_changed:
+if True:
withdrawn-events-delivered: an event that an operator called off is delivered, because its sender missed the
    acknowledgement
  protect/request.py tests/http/gateway/test_inbox.py::test_a_repeat_is_acknowledged_in_every_state[same-withdrawn]
-if is_event and record is not None and is_withdrawn(record):
+if False:
late-events-unsigned: after an outage the service refuses every event that was signed before it
  protect/operation.py tests/http/gateway/test_inbox.py::test_a_late_delivery_is_signed_again
-                if route.inbox is not None:
+                if False:
events-shown-to-everybody: whoever has the id of an event is shown what the service answered
  app/parts.py tests/http/gateway/test_inbox.py::test_nobody_is_shown_what_became_of_an_event
-[route for route in routes if route.inbox is None]
+routes
""")
