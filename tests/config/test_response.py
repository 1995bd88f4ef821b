"""What of a response is read, kept and fetched, as the file says it: what contradicts itself is refused."""

from __future__ import annotations

import pytest

from gateway.core.outcome import Meaning
from gateway.core.replay import VersionHeader
from tests.config.support import MINIMAL, read, report, with_route


def mistakes(*lines: str, without: str = "") -> list[str]:
    """Where and what, without lines and columns."""
    return [line.split(": routes[0].", 1)[1] for line in report(with_route(*lines, without=without))]


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        (
            "response: {replay: fetch, reference: /id}",
            "response.replay: fetch: location needs reference: location; or write a path such as "
            "/v1/payments/{reference}",
        ),
        (
            'response: {replay: fetch, fetch: "/a/{reference}"}',
            "response.fetch: a path with {reference} needs reference: a JSON pointer such as /id",
        ),
        ('response: {reference: /id, fetch: "/a/{reference}"}', "response.fetch: this needs replay: fetch"),
        (
            "response: {replay: fetch, max_stored_bytes: 1KiB}",
            "response.max_stored_bytes: nothing is stored with replay: fetch; leave this out",
        ),
        (
            "response: {replay: fetch, redact: ['header:X-A']}",
            "response.redact: nothing is stored with replay: fetch; leave this out",
        ),
        (
            "response: {replay: fetch, version: v3}",
            "response.version: a fetched response is in the version that its own request asks for",
        ),
        (
            "response: {on_version_change: gone}",
            "response.on_version_change: gone needs version: which version a response is in",
        ),
        (
            "response: {reference: location, strip: [location]}",
            "response.reference: it is not kept: it is listed under strip or redact",
        ),
        (
            "response: {reference: /card/id, redact: [/card]}",
            "response.reference: it is not kept: it is listed under strip or redact",
        ),
        (
            'response: {reference: /id, replay: fetch, fetch: "/a/../{reference}"}',
            "response.fetch: expected location, or a path such as /v1/payments/{reference}, found '/a/../{reference}'",
        ),
        (
            'response: {reference: /id, replay: fetch, fetch: "/a/{reference}/{id}"}',
            "response.fetch: a brace is not closed or not opened, found '/a/{reference}/{id}'; write {reference}",
        ),
        (
            "outcome: {preset: standard, when: [{status: [200], is: in_doubt}]}",
            "outcome.when[0].where: required, but missing; for whole statuses, write in_doubt: [...]",
        ),
        (
            "outcome: {preset: standard, when: [{status: [204], where: {/a: [b]}, is: in_doubt}]}",
            "outcome.when[0].status: responses with this status have no body",
        ),
        (
            "outcome: {preset: standard, when: [{status: [2xx], where: {/a: [b, c]}, is: in_doubt}, "
            "{status: [200], where: {/a: [c], /d: [e]}, is: final}]}",
            "outcome.when[1]: when[0] matches every response that this does",
        ),
        (
            "fingerprint: {ignore: [/a], defaults: {/a/b: 1}}",
            "fingerprint.defaults.…: /a/b is not compared: it is listed under ignore",
        ),
        (
            "fingerprint: {only: [/a], defaults: {/b: 1}}",
            "fingerprint.defaults.…: /b is not compared: it is not listed under only",
        ),
        (
            "fingerprint: {defaults: {/a: 1, /a/b: 1}}",
            "fingerprint.defaults.…: /a/b is within another value that has a default",
        ),
        (
            "fingerprint: {body: raw, defaults: {/a: 1}}",
            "fingerprint.defaults: defaults is for JSON bodies, but body is raw",
        ),
    ],
)
def test_a_setting_that_says_nothing_or_two_things(line: str, mistake: str) -> None:
    """It is refused, with what to write."""
    key = line.partition(":")[0]
    without = key if f"    {key}:" in MINIMAL else ""
    assert mistakes(line, without=without) == [mistake]


def test_settings_that_others_make_useless() -> None:
    """A version that is compared is another request; a response that may be of an earlier attempt has no meaning."""
    versioned = "response: {version: {header: API-Version}}"
    assert mistakes(versioned, "fingerprint: {headers: [api-version]}", without="fingerprint") == [
        "fingerprint.headers[0]: response.version names this header: if it is compared, another version is another "
        "request (422)"
    ]
    rules = "outcome: {preset: standard, when: [{status: [409], where: {/a: [b]}, is: final}]}"
    assert mistakes(rules, "recovery: resend", without="outcome") == [
        "outcome.when[0].status: with recovery: resend, these are always in doubt: an earlier attempt may still be "
        "running"
    ]


def test_what_the_settings_come_to() -> None:
    """Bodies are read where something in them counts; what is stripped or redacted is not kept as made either."""

    plain = read(MINIMAL).routes[0].keep_policy
    assert (plain.reference, plain.reads_bodies, plain.version, plain.is_fetched) == ("location", False, None, False)
    found = read(with_route("response: {reference: /data/id, version: {header: API-Version}}")).routes[0].keep_policy
    assert (found.reference, found.reads_bodies) == (("data", "id"), True)
    assert found.version == VersionHeader(b"api-version")
    for line in ("response: {strip: [Location]}", "response: {redact: ['header:location']}"):
        assert read(with_route(line)).routes[0].keep_policy.reference is None
    fetched = read(with_route("response: {replay: fetch}")).routes[0].keep_policy
    assert (fetched.is_fetched, fetched.body_bytes_max, fetched.fetch_path) == (True, 0, None)
    rules = "outcome: {preset: standard, when: [{status: [2xx], where: {/a: [b]}, is: in_doubt}]}"
    route = read(with_route(rules, without="outcome")).routes[0]
    ((rule, meaning),) = route.status_policy.when
    assert (meaning, len(rule.statuses), rule.where) == (Meaning.IN_DOUBT, 100, ((("a",), frozenset(("b",))),))
    assert route.keep_policy.reads_bodies


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("web", '"web"'),
        ("10.00", "10.00"),
        ("'\"10\"'", '"10"'),
        ("true", "true"),
        ("'null'", "null"),
        ("é", '"\\u00e9"'),
        ("''", '""'),
    ],
)
def test_a_default_is_written_as_in_json(written: str, text: str) -> None:
    """A word is a string, and a number keeps its digits."""
    route = read(with_route(f"fingerprint: {{defaults: {{/a: {written}}}}}", without="fingerprint")).routes[0]
    assert route.fingerprint.defaults == {"/a": text}
