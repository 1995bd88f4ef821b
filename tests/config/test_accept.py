"""Accepting requests and delivering them later: what the file must say, and what follows where it says nothing."""

from __future__ import annotations

import pytest

from gateway.config import ConfigError, Placeholders, notices, parse
from gateway.core.delivery import DeliveryPolicy
from gateway.core.operation import microseconds
from gateway.protect.route import accept_policy
from tests.config.support import report

KEY = "A" * 43 + "="
TOP = f"""\
upstream: {{url: http://127.0.0.1:9000}}
store: {{durable: sqlite:///var/lib/gateway/operations.db}}
secrets: {{encryption: [{{id: a, key: '{KEY}'}}]}}
"""
ROUTE = """\
routes:
  - name: pay
    match: {path: /pay}
    key: {header: Idempotency-Key}
    scope: {header: X-Tenant, from: [10.0.0.0/8]}
    outcome: {preset: standard}
"""


def written(*lines: str, top: str = TOP, **route: str) -> str:
    """A file whose route accepts, with these lines of the route, and others instead of those above."""
    text = ROUTE
    for name, value in route.items():
        text = (
            "\n".join(f"    {name}: {value}" if f"    {name}:" in line else line for line in text.splitlines()) + "\n"
        )
    lines = lines if any(line.startswith("accept") for line in lines) else ("accept: {}", *lines)
    return top + text + "".join(f"    {line}\n" for line in lines)


def mistakes(text: str) -> list[str]:
    """The mistakes of a file without their places in the text."""
    return [line.partition(": ")[2] for line in report(text)]


def test_a_route_overrides_the_delivery_of_all() -> None:
    """Key by key; what it leaves out is as for all routes."""
    text = written("delivery: {schedule: [2s], unauthorized: retry}", top=TOP + "delivery: {max_answers: 3}\n")
    config = parse(text)
    policy = accept_policy(config, config.routes[0])
    assert policy is not None
    assert policy.delivery == DeliveryPolicy(schedule_us=(microseconds(2),), answers_max=3, buries_unauthorized=False)


def test_a_short_body_limit_narrows_what_is_accepted() -> None:
    """What cannot come in cannot be accepted: the default follows."""
    config = parse(written("body: {max_bytes: 1KiB}"))
    policy = accept_policy(config, config.routes[0])
    assert policy is not None
    assert policy.request_bytes_max == 1024


VERIFIED = (
    "verify tokens by {jwt: {...}}, or let a trusted hop name the caller: {header: NAME, from: [10.0.0.0/8]}; "
    "or write identity: unverified, where only callers that you trust reach this route"
)
STRANGERS = "routes[0].accept: strangers could fill the store: "


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (
            written(top=TOP.replace("secrets:", "#")),
            "routes[0].accept: accept requires secrets.encryption, because the requests that it keeps hold "
            'credentials; write secrets: {encryption: [{id: NAME, key: "${NAME}"}]}, with a key from: '
            "openssl rand -hex 32",
        ),
        (written(scope="shared"), f"{STRANGERS}a shared scope names no caller; {VERIFIED}"),
        (
            written(scope="{api_key: X-Api-Key}"),
            f"{STRANGERS}the service verifies an API key when the request is delivered, not before it is stored; "
            f"{VERIFIED}",
        ),
        (
            written(scope="{header: X-Tenant, from: any}"),
            f"{STRANGERS}with `from: any`, every client can name itself; {VERIFIED}",
        ),
        (
            written(scope="{compose: [{api_key: X-A}, {header: X-Tenant, from: any}]}"),
            f"{STRANGERS}the service verifies an API key when the request is delivered, not before it is stored; "
            f"{VERIFIED}",
        ),
        (
            written("accept: {mode: always}", "order: {by: /account}"),
            "routes[0].order: order needs a key in every request: one without passes through, and those that wait; "
            "write key: {..., required: true}",
        ),
        (
            written("accept: {max_bytes: 2KiB}", "body: {max_bytes: 1KiB}"),
            "routes[0].accept.max_bytes: max_bytes must be at most body.max_bytes; 2KiB is more than 1KiB",
        ),
        (
            written("accept: {headers: {idempotency-key: x}}"),
            "routes[0].accept.headers.idempotency-key: the service would get another key than the caller's",
        ),
        (
            written("retention: {replay: 1h}"),
            "routes[0].retention.replay: accept requires retention.replay of at least 24h: its callers come back for "
            "the response; 1h is shorter",
        ),
        (
            written("retention: {remember: 1h}"),
            "routes[0].retention.remember: accept requires retention.remember of at least 24h: its callers come back "
            "for the response; 1h is shorter",
        ),
        (
            written("delivery: {deliver_within: 8d}"),
            "routes[0].delivery.deliver_within: delivery.deliver_within must be at most retention.remember; 8d is "
            "longer than 7d; write retention: {remember: 8d}, or deliver earlier",
        ),
        (
            written(top=TOP + "delivery: {deliver_within: 8d}\n"),
            "routes[0].accept: delivery.deliver_within must be at most retention.remember; 8d is longer than 7d; "
            "write retention: {remember: 8d}, or deliver earlier",
        ),
        (
            written(match="{path: '/{kind}/{id}'}"),
            "routes[0].match.path: this matches /_operations, where callers ask what became of an accepted request; "
            "write another operations: {path: ...}, or narrow the route",
        ),
        (
            written(top=TOP + "operations: {path: /a//b}\n"),
            "operations.path: expected a path such as /_operations, found '/a//b'; of letters, digits, '-', '_' and "
            "'~', without a slash at its end",
        ),
        (
            written(top=TOP + "public_url: ftp://shop\n"),
            "public_url: expected a URL such as https://api.example.com, found 'ftp://shop'",
        ),
        (
            written(top=TOP + "delivery: {breaker: {open: 2m, max_open: 1m}}\n"),
            "delivery.breaker.open: open must be at most max_open; 2m is longer than 1m",
        ),
        (
            written(top=TOP.replace("]", f", {{id: a, key: '{KEY}'}}]")),
            "secrets.encryption[1].id: another key has this id already",
        ),
        (
            written(top=TOP.replace("]", f", {{id: b, key: '{KEY}'}}]")),
            "secrets.encryption[1].key: another key of this list has this secret already; make one for each id",
        ),
    ],
)  # fmt: skip
def test_mistakes(text: str, mistake: str) -> None:
    """Each is reported alone, and says what to write."""
    assert mistakes(text) == [mistake]


@pytest.mark.parametrize("key", ["c2hvcnQ=", "not base64", "a" * 63, "", KEY + "AAAA"])
def test_a_wrong_key_is_not_shown(key: str) -> None:
    """The report says how to make a key, and never repeats the wrong one."""
    (mistake,) = mistakes(written(top=TOP.replace(KEY, key)))
    assert mistake == (
        "secrets.encryption[0].key: expected 32 bytes as 64 hexadecimal digits, or as base64; "
        "make one with: openssl rand -hex 32"
    )


def test_a_header_for_the_service_is_not_shown() -> None:
    """It may be a credential, also where it is wrong."""
    (mistake,) = mistakes(written('accept: {headers: {Authorization: "s3cr3t\\n"}}'))
    assert mistake == "routes[0].accept.headers.Authorization: expected one line, without white space at its ends"


@pytest.mark.parametrize(
    "text",
    [
        written(top=TOP.replace(KEY, "0f" * 32)),
        written("accept: {identity: unverified}", scope="shared"),
        written("accept: {identity: unverified}", scope="{api_key: Authorization}"),
        written(scope="{compose: [{api_key: X-A}, {header: X-Tenant, from: [10.0.0.0/8]}]}"),
        written("accept: {mode: always}", key="{header: Idempotency-Key, required: true}"),
        written("accept: {mode: always}"),
        written("delivery: {deliver_within: 8d}", "retention: {remember: 8d}"),
        written(top=TOP + "public_url: https://shop.example/api/\n"),
        written(match="{path: '/v1/{rest:.*}'}"),
        (TOP + ROUTE).replace("/pay", "'/{rest:.*}'"),
    ],
)
def test_what_is_right(text: str) -> None:
    """None of this is a mistake."""
    assert parse(text).routes


def test_remarks() -> None:
    """What is allowed and questionable is said by `check`."""
    payments = written(
        "accept: {identity: unverified}",
        top=TOP.replace("secrets: {", f"secrets: {{fingerprint_key: {{id: a, key: {'k' * 32}}}, ")
        + "delivery: {workers: 0}\n",
        scope="shared",
        outcome="{preset: payments}",
    )
    assert [str(notice) for notice in notices(parse(payments))] == [
        "delivery.workers: what is accepted waits until `idempotency-gateway deliver` runs elsewhere",
        "routes[0].accept.identity: any client that reaches the gateway can store requests, to the limits",
        "routes[0].recovery: every 5xx of a delivery is in doubt, and waits for an operator: let a probe find out what "
        "happened",
    ]
    idle = TOP + ROUTE + "    dead_letter: {on_repeat: requeue}\n"
    assert [str(notice) for notice in notices(parse(idle))] == [
        "routes[0].dead_letter: has no effect: this route accepts nothing"
    ]


def test_a_file_is_checked_without_its_secrets() -> None:
    """A key that is not there counts as one."""
    text = written(top=TOP.replace(KEY, "${STORAGE_KEY}"))
    with pytest.raises(ConfigError):
        parse(text)
    names = Placeholders()
    assert parse(text, stand_in=names).secrets.encryption[0].id == "a"
    assert names.names == ["STORAGE_KEY"]


def test_order_is_for_what_is_all_accepted() -> None:
    """Whatever runs at once, or without the store, would pass those that wait."""
    always = written("accept: {mode: always}", "order: {by: /account}", key="{header: Idempotency-Key, required: true}")
    policy = accept_policy(parse(always), parse(always).routes[0])
    assert policy is not None
    assert policy.order is not None
    assert (policy.order.on_stop, policy.order.missing) == ("stop", "refuse")
    required = "{header: Idempotency-Key, required: true}"
    assert mistakes(written("order: {by: /account}", key=required)) == [
        "routes[0].order: order is for requests that are all accepted: one that is not would pass those that wait; "
        "write accept: {mode: always}"
    ]
    (forwarded,) = mistakes(always + "    store_unavailable: forward\n")
    assert forwarded.startswith("routes[0].store_unavailable: ")
