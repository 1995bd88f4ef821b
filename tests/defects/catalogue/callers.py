"""Defects of who the caller is: what an authorising service says of it, and a certificate."""

from __future__ import annotations

from tests.defects.defect import read

DEFECTS = read(r"""
override-not-asked-about: a header makes a service execute another method than permission was asked for
  callers.py tests/http/gateway/test_forward_auth.py::test_a_method_that_nobody_was_asked_about[scope]
-if _has_other_reading(request.head):
+if False:
caller-names-itself: the service believes a name that the client wrote
  http/handler.py tests/http/gateway/test_forward_auth.py::test_a_caller_that_names_itself[GET]
  tests/http/gateway/test_forward_auth.py::test_what_the_service_gets[email]
  tests/http/gateway/test_forward_auth.py::test_a_tunnel[Upgrade]
-served.reserved.without(head)
+head
caller-names-itself-in-another-spelling: a service that cannot tell `_` from `-` believes it
  core/message.py tests/http/edge/test_strictness.py::test_spellings[X_User_Id]
-_NOT_ALPHANUMERIC.sub(b"-", name.lower())
+name.lower()
caller-removes-its-name: a `Connection` header drops what the authorising service says
  http/handler.py tests/http/edge/test_strictness.py::test_a_connection_header
-not self._is_reserved[option.strip()]]
+option]
first-principal-taken: of two principals one is believed
  callers.py tests/http/gateway/test_forward_auth.py::test_no_decision[two-principals]
-if len(principals) > 1:
+if len(principals) > 9:
failure-is-permission: whoever breaks the authorising service may do anything
  callers.py tests/http/gateway/test_forward_auth.py::test_authorize_asks_about_every_request
-is_permission = 200 <= head.status < 300
+is_permission = not 300 <= head.status < 500
permission-for-everybody: a permission is remembered for whoever asks next
  callers.py tests/http/gateway/test_forward_auth.py::test_a_remembered_permission
-for part in header])
+for part in header[:1]])
permission-for-ever: a permission that was withdrawn still counts
  callers.py tests/http/gateway/test_forward_auth.py::test_a_remembered_permission
-if self._clock() >= until:
+if self._clock() < 0:
questions-unbounded: a slow authorising service holds any number of requests
  callers.py tests/http/gateway/test_forward_auth.py::test_too_many_questions
-if self._asked >= self._asked_max:
+if self._asked < 0:
unkeyed-goes-unasked: without a key, a request is made that may not be made
  protect/identification.py tests/http/gateway/test_forward_auth.py::test_authorize_asks_about_every_request
-by_head.append(partial(_authorize, route.authorize))
+whole.append(partial(_authorize, route.authorize))
status-goes-unasked: what became of a request is shown to whoever may not make it
  protect/resource.py tests/http/gateway/test_forward_auth.py::test_authorize_guards_the_status
-if route.authorize is not None:
+if route is None:
origin-is-forged: the authorising service believes whom a client says it is
  protect/forwarding.py tests/http/gateway/test_forward_auth.py::test_the_question
-trusted = is_within(hop.peer, trusted_proxies)
+trusted = bool(names) or is_within(hop.peer, trusted_proxies)
nothing-is-handed-on: the service behind does not learn who calls
  protect/identification.py tests/http/gateway/test_forward_auth.py::test_what_the_service_gets[email]
-if found.headers:
+if not found:
certificate-of-the-proxy: all callers behind a proxy are one
  callers.py tests/http/gateway/test_tls.py::test_through_a_proxy
-if peer is not None and any(
+if peer is None and any(
certificate-has-expired: a connection makes a certificate last for ever
  callers.py tests/http/gateway/test_tls.py::test_one_that_expires_on_its_connection
-if certificate.until <=
+if certificate.until < 0 <=
certificate-is-optional: clients without a certificate connect where one is required
  upstream/connect.py tests/http/gateway/test_tls.py::test_certificates_that_are_not_accepted[required]
-ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
+ssl.CERT_OPTIONAL
first-name-taken: of two names of a certificate one is believed
  core/identity/caller.py tests/core/test_certificate.py::test_two_names_are_nobody[uri]
-if len(names) > 1:
+if len(names) > 9:
""")
