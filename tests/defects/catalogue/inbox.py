"""Defects of inboxes: who sent an event, which one it is, and what its sender is told."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

SCHEME = "core/webhook.py"
SIGNATURE = "core/webhook.py"
EXAMINATION = "core/webhook.py"
INBOX = "protect/inbox.py"
_CORE = "tests/core/test_inbox.py::"
_WHOLE = "tests/http/gateway/test_inbox.py::"

DEFECTS = (
    Defect(
        "unsigned-events",
        "whoever knows the address of an inbox has events delivered",
        (Edit(SIGNATURE, "    if not signers:\n        return Refused(Fault.INVALID)\n", ""),),
        (_CORE + "test_the_message_does_not_choose_the_algorithm",),
    ),
    Defect(
        "events-from-the-future",
        "a message that was signed for later can be sent again until then",
        (Edit(SIGNATURE, "abs(now - signed_at) > tolerance_seconds", "now - signed_at > tolerance_seconds"),),
        (_CORE + "test_the_tolerance_holds_on_both_sides",),
    ),
    Defect(
        "ended-secrets-count",
        "a secret that was given away and replaced still signs events",
        (Edit(SCHEME, "if secret.until is None or now < secret.until]", "]"),),
        (_CORE + "test_every_living_secret_is_tried",),
    ),
    Defect(
        "ids-that-nobody-signed",
        "an old message is a new event under an id that its sender never saw",
        (Edit(SCHEME, "key = ContentKey() if guards_content else scheme.key", "key = scheme.key"),),
        (_CORE + "test_an_unsigned_id_makes_no_other_event",),
    ),
    Defect(
        "what-an-event-is",
        "an order that is paid is taken for the same order when it was created, acknowledged and never delivered",
        (Edit(SCHEME, "    if not scheme.about or isinstance(key", "    if True or isinstance(key"),),
        (_WHOLE + "test_what_the_sender_says_beside_the_body",),
    ),
    Defect(
        "ids-of-another-scheme",
        "an old message is a new event when a header of another scheme comes with it",
        (
            Edit(
                EXAMINATION,
                "spec = event_key(scheme, guards_content=inbox.guards_content)",
                "spec = inbox.key",
            ),
        ),
        (_CORE + "test_a_further_id_of_another_scheme_changes_nothing",),
    ),
    Defect(
        "acknowledged-before-stored",
        "an event that could not be stored is acknowledged, and nobody sends it again",
        (
            Edit(
                INBOX,
                "                return found if known is None else await",
                "                return _acknowledged(inbox, found.verdict) if known is None else await",
            ),
        ),
        (_WHOLE + "test_the_store_is_down",),
    ),
    Defect(
        "changed-events-refused",
        "a sender that counts in its events gives up the endpoint",
        (Edit(INBOX, "if inbox.refuses_changed:", "if True:"),),
        (_WHOLE + "test_a_repeat_is_acknowledged_in_every_state[changed-completed]",),
    ),
    Defect(
        "withdrawn-events-delivered",
        "an event that an operator called off is delivered, because its sender missed the acknowledgement",
        (Edit("protect/request.py", "if is_event and record is not None and is_withdrawn(record):", "if False:"),),
        (_WHOLE + "test_a_repeat_is_acknowledged_in_every_state[same-withdrawn]",),
    ),
    Defect(
        "late-events-unsigned",
        "after an outage the service refuses every event that was signed before it",
        (Edit("protect/operation.py", "                if route.inbox is not None:\n", "                if False:\n"),),
        (_WHOLE + "test_a_late_delivery_is_signed_again",),
    ),
    Defect(
        "events-shown-to-everybody",
        "whoever has the id of an event is shown what the service answered",
        (Edit("app/parts.py", "[route for route in routes if route.inbox is None]", "routes"),),
        (_WHOLE + "test_nobody_is_shown_what_became_of_an_event",),
    ),
)
