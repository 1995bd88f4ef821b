"""Defects of who the caller is: what an authorising service says of it, and a certificate."""

from __future__ import annotations

from tests.defects.defect import Defect, Edit

ASKING = "callers/forward_auth.py"
_FORWARD_AUTH = "tests/http/gateway/test_forward_auth.py::"
_CERTIFICATES = "tests/http/gateway/test_client_certificates.py::"

DEFECTS = (
    Defect(
        "override-not-asked-about",
        "a header makes a service execute another method than permission was asked for",
        (Edit(ASKING, "if _has_other_reading(request.head):", "if False:"),),
        (_FORWARD_AUTH + "test_a_method_that_nobody_was_asked_about[scope]",),
    ),
    Defect(
        "caller-names-itself",
        "the service believes a name that the client wrote",
        (Edit("http/handler.py", "served.reserved.without(head)", "head"),),
        (
            _FORWARD_AUTH + "test_a_caller_that_names_itself[GET]",
            _FORWARD_AUTH + "test_what_the_service_gets[email]",
            _FORWARD_AUTH + "test_a_tunnel",
        ),
    ),
    Defect(
        "caller-names-itself-in-another-spelling",
        "a service that cannot tell `_` from `-` believes it",
        (Edit("core/message.py", '_NOT_ALPHANUMERIC.sub(b"-", name.lower())', "name.lower()"),),
        ("tests/http/edge/test_reserved.py::test_spellings[X_User_Id]",),
    ),
    Defect(
        "caller-removes-its-name",
        "a `Connection` header drops what the authorising service says",
        (Edit("http/exchange.py", "not self._is_reserved[option.strip()]]", "option]"),),
        ("tests/http/edge/test_reserved.py::test_a_connection_header",),
    ),
    Defect(
        "first-principal-taken",
        "of two principals one is believed",
        (Edit(ASKING, "if len(principals) > 1:", "if len(principals) > 9:"),),
        (_FORWARD_AUTH + "test_no_decision[two-principals]",),
    ),
    Defect(
        "failure-is-permission",
        "whoever breaks the authorising service may do anything",
        (Edit(ASKING, "is_permission = 200 <= head.status < 300", "is_permission = not 300 <= head.status < 500"),),
        (_FORWARD_AUTH + "test_authorize_asks_about_every_request",),
    ),
    Defect(
        "permission-for-everybody",
        "a permission is remembered for whoever asks next",
        (Edit(ASKING, "for part in header])", "for part in header[:1]])"),),
        (_FORWARD_AUTH + "test_a_remembered_permission",),
    ),
    Defect(
        "permission-for-ever",
        "a permission that was withdrawn still counts",
        (Edit(ASKING, "if self._clock() >= until:", "if self._clock() < 0:"),),
        (_FORWARD_AUTH + "test_a_remembered_permission",),
    ),
    Defect(
        "questions-unbounded",
        "a slow authorising service holds any number of requests",
        (Edit(ASKING, "if self._asked >= self._asked_max:", "if self._asked < 0:"),),
        (_FORWARD_AUTH + "test_too_many_questions",),
    ),
    Defect(
        "unkeyed-goes-unasked",
        "without a key, a request is made that may not be made",
        (
            Edit(
                "protect/identification.py",
                "by_head.append(partial(_authorize, route.authorize))",
                "whole.append(partial(_authorize, route.authorize))",
            ),
        ),
        (_FORWARD_AUTH + "test_authorize_asks_about_every_request",),
    ),
    Defect(
        "status-goes-unasked",
        "what became of a request is shown to whoever may not make it",
        (Edit("protect/resource.py", "if route.authorize is not None:", "if route is None:"),),
        (_FORWARD_AUTH + "test_authorize_guards_the_status",),
    ),
    Defect(
        "origin-is-forged",
        "the authorising service believes whom a client says it is",
        (
            Edit(
                "protect/forwarding.py",
                "trusted = _is_trusted(hop.peer, trusted_proxies)",
                "trusted = bool(names) or _is_trusted(hop.peer, trusted_proxies)",
            ),
        ),
        (_FORWARD_AUTH + "test_the_question",),
    ),
    Defect(
        "nothing-is-handed-on",
        "the service behind does not learn who calls",
        (Edit("protect/identification.py", "if found.headers:", "if not found:"),),
        (_FORWARD_AUTH + "test_what_the_service_gets[email]",),
    ),
    Defect(
        "certificate-of-the-proxy",
        "all callers behind a proxy are one",
        (Edit("callers/tokens.py", "if peer is not None and any(", "if peer is None and any("),),
        (_CERTIFICATES + "test_through_a_proxy",),
    ),
    Defect(
        "certificate-has-expired",
        "a connection makes a certificate last for ever",
        (Edit("callers/tokens.py", "if certificate.until <=", "if certificate.until < 0 <="),),
        (_CERTIFICATES + "test_one_that_expires_on_its_connection",),
    ),
    Defect(
        "certificate-is-optional",
        "clients without a certificate connect where one is required",
        (
            Edit(
                "upstream/tls.py",
                "ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL",
                "ssl.CERT_OPTIONAL",
            ),
        ),
        (_CERTIFICATES + "test_certificates_that_are_not_accepted[required]",),
    ),
    Defect(
        "first-name-taken",
        "of two names of a certificate one is believed",
        (Edit("core/identity/peer.py", "if len(names) > 1:", "if len(names) > 9:"),),
        ("tests/core/test_certificate.py::test_two_names_are_nobody[uri]",),
    ),
)
