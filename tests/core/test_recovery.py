"""Recovery as decisions: who may try, what is asked, what an answer means, how long to leave it alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.identity.body import parse_json, parse_pointer
from gateway.core.lifecycle import LAPSED_DOUBT
from gateway.core.message import Headers, IndexedHeaders, ResponseHead
from gateway.core.operation import MICROSECONDS, ProbeTarget, RequestInfo, Snapshot, State, microseconds
from gateway.core.outcome import ResponseRule
from gateway.core.recovery import (
    AskAgain,
    Done,
    Finding,
    Hold,
    NeverHappened,
    Probe,
    Recovery,
    Resend,
    conclude_probe,
    pause_us,
    probe_placeholders,
    probe_target,
    render_probe,
    retry_after_seconds,
)
from gateway.core.routing import PathPattern
from tests.core.records import RECORD as CLAIMED
from tests.core.rows import rows

RECORD = replace(CLAIMED, state=State.IN_DOUBT, claimed_us=40, lease_until_us=100, doubt=LAPSED_DOUBT)
REQUEST = RequestInfo("POST", "shop.example", "/charges")
NOW_US = 1_000
SETTLE_US = 50
HAPPENED = ResponseRule(frozenset((200,)), ((parse_pointer("/state"), frozenset(("succeeded", "failed"))),))
NOTHING = ResponseRule(frozenset((404,)))
GONE = ResponseRule(frozenset((410,)))
PROBE = Probe(path="/status?o={operation_id}", done=(HAPPENED,), never_happened=(NOTHING,), settle_us=SETTLE_US)


def finding(
    status: int,
    body: bytes = b"",
    *,
    probe: Probe = PROBE,
    headers: Headers = (),
    began_us: int = 1_000,
    steady_us: float = math.inf,
) -> Finding:
    head = ResponseHead(status, b"", IndexedHeaders(headers))
    return conclude_probe(probe, head, body, RECORD, began_us, steady_us / MICROSECONDS)


SEVERAL = replace(PROBE, done=(HAPPENED, ResponseRule(frozenset((201,)))), never_happened=(NOTHING, GONE))
BOTH = replace(PROBE, done=(NOTHING,))


@pytest.mark.parametrize(
    ("probe", "status", "body", "kind"),
    [
        (PROBE, 200, b'{"state":"succeeded"}', Done),
        (PROBE, 200, b'{"state":"processing"}', AskAgain),
        (PROBE, 200, b'{"state":["succeeded"]}', AskAgain),
        (PROBE, 200, b'{"state":"succeeded","state":"processing"}', AskAgain),
        (PROBE, 200, b"succeeded", AskAgain),
        (PROBE, 201, b'{"state":"succeeded"}', AskAgain),
        (PROBE, 404, b"", NeverHappened),
        (PROBE, 500, b"", AskAgain),
        (SEVERAL, 201, b"", Done),
        (SEVERAL, 410, b"", NeverHappened),
        (SEVERAL, 204, b"", AskAgain),
        (BOTH, 404, b"", AskAgain),
    ],
)
def test_what_an_answer_means(probe: Probe, status: int, body: bytes, kind: type[Finding]) -> None:
    """Only an answer that a rule explains says anything, any one rule is enough, and who says both says nothing."""
    assert isinstance(finding(status, body, probe=probe), kind)


def test_a_rule_fits_by_all_that_it_says() -> None:
    """Each thing has to stand as the rule says, letter for letter."""
    where = ((parse_pointer("/state"), frozenset(("gone",))), (parse_pointer("/n"), frozenset(("0",))))
    rule = ResponseRule(frozenset((200,)), where)
    for body in (b'{"state":"gone","n":0}', b'{"state":"gone","n":"0"}'):
        assert rule.fits(200, parse_json(body))
    for body in (b'{"state":"gone","n":false}', b'{"state":"here","n":0}', b'{"state":"gone","n":0.0}'):
        assert not rule.fits(200, parse_json(body))


@pytest.mark.parametrize(("began_us", "kind"), [(149, AskAgain), (150, NeverHappened)], ids=["early", "settled"])
def test_never_happened_only_after_settle(began_us: int, kind: type[Finding]) -> None:
    """That nothing happened counts only for a probe that began when no request could still arrive."""
    assert isinstance(finding(404, began_us=began_us), kind)


@pytest.mark.parametrize(("steady_us", "kind"), [(109, AskAgain), (110, NeverHappened)], ids=["early", "settled"])
def test_never_happened_only_by_a_steady_clock(steady_us: int, kind: type[Finding]) -> None:
    """A store's clock that may have been set ahead does not show by itself that a lease and `settle` are over."""
    assert isinstance(finding(404, began_us=10_000, steady_us=steady_us), kind)


@rows(
    "where, headers, body, expected",
    path=("location", ((b"Location", b"/charges/7"),), b"", b"/charges/7"),
    other_host=("location", ((b"Location", b"//evil/7"),), b"", None),
    two=("location", ((b"Location", b"/a"), (b"Location", b"/b")), b"", None),
    in_body=(parse_pointer("/url"), (), b'{"state":"succeeded","url":"/charges/7"}', b"/charges/7"),
    number=(parse_pointer("/url"), (), b'{"state":"succeeded","url":7}', None),
)
def test_follow(where: object, headers: Headers, body: bytes, expected: bytes | None) -> None:
    """An answer may name the one to record by a path of the same service, and by nothing else."""
    rule = HAPPENED if body else ResponseRule(frozenset((200,)))
    probe = Probe(path="/s", done=(rule,), follow=where)  # type: ignore[arg-type]
    found = finding(200, body, probe=probe, headers=headers)
    if expected is None:
        assert isinstance(found, AskAgain)
    else:
        assert found == Done(expected)


def test_rendering() -> None:
    """A placeholder becomes its value, in the segment or query value where it stands; without one, or by what would be
    another path or no target, nobody is asked."""
    probe = Probe(path="/a/{account}/s?o={operation_id}&k={key}")
    values = {"account": b"x/.y", "operation_id": b"id", "key": b"a&b=c#d \xff"}
    assert render_probe(probe, values, b"host") == ProbeTarget(b"/a/x%2F.y/s?o=id&k=a%26b%3Dc%23d%20%FF", b"host")
    assert probe_placeholders(probe.path) == ["account", "operation_id", "key"]
    for path, value in (
        *[("/a/{x}/s", value) for value in (b"..", b".", b"x/../../y", b"%2e%2E")],
        *[(path, b"y") for path in ("/a b/{x}", "/a#{x}", "/{x}\r\nHost: evil", "/{y}")],
        ("/{x}", b"y" * 10_000),
    ):
        assert render_probe(Probe(path=path), {"x": value}, b"h") is None


@given(st.binary(max_size=50))
def test_rendered_values_never_leave_their_place(value: bytes) -> None:
    """Whatever the value, the target has the segments and the query parts of its template."""
    target = render_probe(Probe(path="/a/{x}/b?c={x}&d=e"), {"x": value}, b"h")
    if target is not None:
        path, _, query = target.target.partition(b"?")
        assert path.count(b"/") == 3
        assert query.count(b"&") == 1
        assert query.count(b"=") == 2


def test_pauses_grow_to_a_bound() -> None:
    """The more often it was asked in vain, the longer until the next time, up to ten minutes."""
    pauses = [pause_us(tries) for tries in range(100)]
    assert pauses == sorted(pauses)
    assert pauses[0] == MICROSECONDS
    assert pauses[-1] == 600 * MICROSECONDS
    assert pause_us(100_000) == pauses[-1]


def doubted(doubt: str = "reset", *, age_seconds: float) -> Snapshot:
    """In doubt, claimed so long ago."""
    record = replace(RECORD, doubt=doubt, claimed_us=NOW_US, lease_until_us=NOW_US + microseconds(30))
    return Snapshot(record, NOW_US + microseconds(age_seconds))


@rows(
    "recovery, snapshot, seconds",
    hold=(Hold(), doubted(age_seconds=5), None),
    resend=(Resend(), doubted(age_seconds=600), 1),
    resend_lapsed=(Resend(), doubted(LAPSED_DOUBT, age_seconds=31), 10),
    probe_old=(Probe("/"), doubted(age_seconds=7 * 86_400), 10),
    probe_settling=(Probe("/", settle_us=microseconds(10)), doubted(age_seconds=37), 3),
    probe_settled=(Probe("/", settle_us=microseconds(10)), doubted(age_seconds=41), 10),
)
def test_when_a_repeat_may_end_a_doubt(recovery: Recovery, snapshot: Snapshot, seconds: int | None) -> None:
    """At once where it is sent again, soon and bounded where it is asked about, never where it is held."""
    assert retry_after_seconds(recovery, snapshot) == seconds


def test_a_probe_that_came_later_is_that_of_the_claim() -> None:
    """Made of what is kept of the request, it has every octet that it would have had."""
    pattern = PathPattern.parse("/tenants/{tenant}/charges")
    probe = Probe("/status/{tenant}?operation={operation_id}", patterns=(pattern,))
    late = replace(RECORD, probe=None, request=replace(REQUEST, path="/tenants/a%2Fb%E9c/charges"))
    operation = str(RECORD.identity.operation_id).encode()
    assert probe_target(probe, late) == ProbeTarget(b"/status/a%2Fb%E9c?operation=" + operation, b"shop.example")
    assert probe_target(probe, replace(late, request=replace(REQUEST, path="/elsewhere"))) is None
    noted = ProbeTarget(b"/as/noted", b"then.test")
    assert probe_target(probe, replace(late, probe=noted)) == noted
