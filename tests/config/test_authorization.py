"""Authorising services and client certificates in the file: what is refused, and what is remarked on."""

from __future__ import annotations

import pytest

from gateway.config import Placeholders, notices, parse
from tests.config.support import read, report, with_global, with_route

URL = "http://127.0.0.1:4180/oauth2/auth?app=shop"


def scope(url: str = URL, principal: str = "X-User", **settings: str) -> str:
    """A file whose scope is a principal."""
    written = "".join(f", {name}: {value}" for name, value in settings.items())
    return with_route(f"scope: {{forward_auth: {{url: '{url}', principal: {principal}{written}}}}}", without="scope")


def authorize(url: str = URL, **settings: str) -> str:
    """A file that has every request authorised."""
    written = "".join(f", {name}: {value}" for name, value in settings.items())
    return with_route(f"authorize: {{forward_auth: {{url: '{url}'{written}}}}}")


OF_THE_GATEWAY = "the gateway writes this header itself"
OF_THE_CONNECTION = "this header belongs to the connection or to the gateway, not to the request"
AT = "routes[0].scope.forward_auth"


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (scope(url="http://127.0.0.1:8080/auth"), f"{AT}.url: the gateway itself listens on 127.0.0.1:8080 and would"),
        (
            authorize(url="http://localhost:8080/"),
            "routes[0].authorize.forward_auth.url: the gateway itself listens on",
        ),
        (scope(url="http://127.0.0.1:8081/"), f"{AT}.url: the gateway itself listens on 127.0.0.1:8081 and would ask"),
        (
            scope(url="http://127.0.0.1:8082/") + "admin: {listen: '127.0.0.1:8082', token: s3cret-s3cret-s3cret}\n",
            f"{AT}.url: the gateway itself listens on 127.0.0.1:8082 and would ask",
        ),
        (
            scope(copy="[X-Mail]").replace(
                "scope: {f", "authorize: {forward_auth: {url: 'http://a/', copy: [x-mail]}}\n    scope: {f"
            ),
            "routes[0].authorize.forward_auth.copy: x-mail is copied from another service too",
        ),
        (scope(url="ftp://a/"), f"{AT}.url: expected a URL such as http://127.0.0.1:4180/oauth2/auth"),
        (scope(url="https://u:s3cret@a/"), f"{AT}.url: expected a URL such as"),
        (scope(url="http://a/ b"), f"{AT}.url: expected a URL such as"),
        (scope(principal="Connection"), f"{AT}.principal: {OF_THE_CONNECTION}"),
        (scope(principal="Proxy-Authorization"), f"{AT}.principal: {OF_THE_CONNECTION}"),
        (scope(principal="Idempotency-Status"), f"{AT}.principal: {OF_THE_CONNECTION}"),
        (scope(principal="X-Forwarded-User"), f"{AT}.principal: {OF_THE_GATEWAY}"),
        (scope(principal="Host"), f"{AT}.principal: {OF_THE_GATEWAY}"),
        (scope(principal="X_User"), f"{AT}.principal: services may confuse '_' with '-' in the name of a header"),
        (scope(principal="Content-Type"), f"{AT}.principal: this header describes the response"),
        (scope(principal="Idempotency-Key"), f"{AT}: Idempotency-Key holds the key or names the caller"),
        (scope(principal="Authorization"), f"{AT}.principal: this is listed under headers too"),
        (scope(copy="[Upgrade]"), f"{AT}.copy[0]: {OF_THE_CONNECTION}"),
        (scope(copy="[Set-Cookie]"), f"{AT}.copy[0]: this header is for browsers"),
        (scope(copy="[X-A, x-a]"), f"{AT}.copy[1]: this is listed already"),
        (scope(copy="[Cookie]"), f"{AT}.copy[0]: this is listed under headers too"),
        (scope(headers="[X-Forwarded-For]"), f"{AT}.headers[0]: {OF_THE_GATEWAY}"),
        (scope(headers="[Content-Length]"), f"{AT}.headers[0]: the service is asked without the body"),
        (scope(headers="[TE]"), f"{AT}.headers[0]: {OF_THE_CONNECTION}"),
        (scope(ca="/ca.pem"), f"{AT}.ca: ca needs an https URL"),
        (authorize(principal="X-User"), "routes[0].authorize.forward_auth.principal: unknown key in version"),
        (with_route("scope: {forward_auth: {url: 'http://a/'}}", without="scope"), f"{AT}.principal: required"),
        (
            with_route("scope: {client_certificate: cn}", without="scope"),
            "client_certificate: expected subject, san or",
        ),
        (
            with_route("scope: {client_certificate: san}", without="scope"),
            "routes[0].scope: callers are asked for certificates only where listen.tls.client_ca says whose",
        ),
        (
            with_global("listen: {address: '127.0.0.1:1', tls: {cert: /c, key: /k, client_certificate: required}}"),
            "listen.tls.client_certificate: certificates of callers need client_ca",
        ),
    ],
)
def test_a_mistake(text: str, mistake: str) -> None:
    """It is found before anything starts, and a credential in a URL is not repeated."""
    (line,) = report(text)
    assert mistake in line
    assert "s3cret" not in line


@pytest.mark.parametrize("path", ["/pay", "/{rest:.*}", "/other"])
def test_a_header_that_another_route_reads(path: str) -> None:
    """It is dropped on every path, so none can read it."""
    other = f"""
  - name: other
    match: {{methods: [PUT], path: "{path}"}}
    key: {{header: Idempotency-Key}}
    scope: {{header: x-user, from: any}}
    outcome: {{preset: standard}}
"""
    (line,) = report(scope() + other)
    assert f"{AT}: X-User holds the key or names the caller on other, and is dropped everywhere" in line


def test_an_inbox_is_not_authorized() -> None:
    """Its senders have no credentials but their signature."""
    inbox = "inbox: {preset: stripe, secrets: [{id: a, key: kkkkkkkkkkkkkkkkkkkkkkkk}]}"
    encryption = f"secrets: {{encryption: [{{id: a, key: '{'A' * 43}='}}]}}\n"
    text = encryption + with_route(inbox, f"authorize: {{forward_auth: {{url: '{URL}'}}}}", without="key")
    (line,) = report(text)
    assert "routes[0].authorize: the sender of an event is known by its signature" in line


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (scope(), None),
        (scope(url="https://auth.example/"), None),
        (scope(url="http://auth:4180/"), "http://auth:4180/ is asked without TLS"),
        (authorize(url="http://auth/?secret=s3cret"), "http://auth/ is asked without TLS"),
        (scope(cache="10s"), "for 10s a permission of http://127.0.0.1:4180/oauth2/auth cannot be withdrawn"),
    ],
    ids=["loopback", "https", "http", "authorize", "cache"],
)
def test_a_remark(text: str, remark: str | None) -> None:
    """What is allowed and questionable is remarked on, without the query of the URL."""
    found = [str(notice) for notice in notices(read(text))]
    assert len(found) == (remark is not None)
    assert remark is None or (remark in found[0] and "s3cret" not in found[0] and "app=shop" not in found[0])


def test_a_certificate_by_its_digest() -> None:
    """It is another caller after each renewal."""
    tls = "listen: {address: '127.0.0.1:1', tls: {cert: /c, key: /k, client_ca: /a}}"
    text = f"{tls}\n" + with_route("scope: {client_certificate: sha256}", without="scope")
    (notice,) = notices(read(text))
    assert "a renewed certificate is another caller" in str(notice)


def test_without_its_environment() -> None:
    """A file can be checked where its variables are not set."""
    parse(scope(url="${AUTH_URL}", ca="'${AUTH_CA}'"), stand_in=Placeholders())
    parse(authorize(url="${AUTH_URL}"), stand_in=Placeholders())


def test_accepting_for_authorized_callers() -> None:
    """Requests are stored for verified callers: a principal, a certificate, or a caller that may make the request."""
    encryption = f"secrets: {{encryption: [{{id: a, key: '{'A' * 43}='}}]}}\n"
    api_key = "scope: {api_key: X-Key}"
    (line,) = report(encryption + with_route("accept: {}", api_key, without="scope"))
    assert "routes[0].accept: strangers could fill the store" in line
    may = f"authorize: {{forward_auth: {{url: '{URL}'}}}}"
    read(encryption + with_route("accept: {}", api_key, may, without="scope"))
    principal = f"scope: {{forward_auth: {{url: '{URL}', principal: X-User}}}}"
    read(encryption + with_route("accept: {}", principal, without="scope"))
