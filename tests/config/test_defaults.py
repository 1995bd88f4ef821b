"""One setting alone is never refused because of the default of another: the default follows it, to the safe side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.config import Config
from gateway.config.leaf import Count, Duration, Size, duration_text
from tests.config.support import GLOBAL, ROUTE, read, with_global, with_route

Path = tuple[str, ...]
ACCEPTING = f"secrets: {{encryption: [{{id: a, key: '{'A' * 43}='}}]}}\n"
_ASKED = "url: 'http://127.0.0.1:4180/'"
# What the forms of a scope require, and `authorize` does.
_TOKENS = "issuer: a, audience: b, keys: /k, claims: [sub]"
CALLERS = {
    "jwt": {"scope": _TOKENS, "admin": f"{_TOKENS}, header: X-Token, groups: groups, roles: {{viewer: [staff]}}"},
    "forward_auth": {"scope": f"{_ASKED}, principal: X-User", "authorize": _ASKED},
}
PROBE = "path: /a, done: [{status: [200]}]"


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is not None:
        for inner in get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation):
            yield from _models(inner)


def _bounded(model: type[BaseModel], path: Path) -> Iterator[tuple[Path, str]]:
    """Every setting that has bounds, each with its least value and its greatest."""
    for name, field in model.model_fields.items():
        yield from (((*path, name), value) for value in _ends(field))
        for inner in _models(field.annotation):
            yield from _bounded(inner, (*path, name))


def _ends(field: FieldInfo) -> Iterator[str]:
    # Where nothing is a value too, the bounds stand inside of the annotation.
    inner = [leaf for kind in get_args(field.annotation) for leaf in getattr(kind, "__metadata__", ())]
    for leaf in (*field.metadata, *inner):
        if isinstance(leaf, Duration | Size | Count):
            yield str(leaf.least)
            yield str(leaf.most)


def _of_caller(form: str, keys: Path, value: str) -> str:
    """The same for a setting of who verifies callers, or who signs in to the console."""
    section = f"{{{form}: {{{CALLERS[form][keys[0]]}, {keys[-1]}: {value}}}}}"
    if keys[0] == "admin":
        return with_global(f"admin: {{sign_in: {{secret: {'s' * 16}, {section[1:]}}}")
    written = f"{{compose: [{section}, {{api_key: X-Key}}]}}" if "compose" in keys else section
    return with_route(f"{keys[0]}: {written}", without=keys[0])


def _alone(path: Path, value: str) -> str:
    """A minimal file with this setting beside what is required."""
    keys = path[1:] if path[0] == "routes" else path
    if keys[-1] in ("schedule", "ports"):
        value = f"[{value}]"
    if keys[:2] == ("events", "sinks"):
        sink = "name: feed, kind: redis_stream, url: 'redis://feed:6379', stream: operations"
        return with_global(f"events: {{sinks: [{{{sink}, {keys[-1]}: {value}}}]}}")
    if path[:2] == ("routes", "accept"):
        return ACCEPTING + with_route(f"accept: {{identity: unverified, {keys[-1]}: {value}}}")
    if path[:2] == ("routes", "inbox"):
        inbox = f"inbox: {{preset: stripe, secrets: [{{id: a, key: {'k' * 24}}}], {keys[-1]}: {value}}}"
        return ACCEPTING + with_route(inbox, without="key")
    if (form := next((form for form in CALLERS if form in keys), None)) is not None:
        return _of_caller(form, keys, value)
    if keys[:2] == ("recovery", "probe"):
        return with_route(f"recovery: {{probe: {{{PROBE}, {keys[-1]}: {value}}}}}")
    line = "".join(f"{{{key}: " for key in keys) + value + "}" * len(keys)
    line = line[1:-1]
    if path[0] == "routes":
        return with_route(line)
    top, required = keys[0], {"upstream": "url: http://127.0.0.1:9000", "store": "durable: sqlite:///a/b"}
    if keys in (("store", "promotion_wait"), ("store", "probation"), ("store", "connections")):
        required["store"] = "durable: postgresql://u@h/d"
    if keys == ("store", "replicas"):
        required["store"] = "durable: redis://u@h/0"
    if top in required:
        line = f"{top}: {{{required[top]}, {keys[-1]}: {value}}}\nservice: shop"
        return line + "\n" + "\n".join(row for row in (GLOBAL + ROUTE).split("\n") if not row.startswith(f"{top}:"))
    return with_global(line)


ALONE = list(dict.fromkeys(_bounded(Config, ())))


def test_the_pairs_that_are_ordered_are_among_them() -> None:
    """What follows is generated from the models, and misses none of the settings that bound another."""
    keys = {".".join(path) for path, _ in ALONE}
    assert {
        "upstream.answer_within",
        "upstream.response_timeout",
        "routes.upstream.answer_within",
        "routes.upstream.response_timeout",
        "routes.in_flight.wait",
        "routes.in_flight.max_wait",
        "routes.retention.replay",
        "routes.retention.remember",
        "routes.recovery.probe.settle",
        "routes.body.spool_over",
        "shutdown.delay",
        "store.lease",
        "store.journal_grace",
        "workers",
    } <= keys


@pytest.mark.parametrize(("path", "value"), ALONE, ids=[f"{'.'.join(path)}={value}" for path, value in ALONE])
def test_a_setting_alone_is_never_refused(path: Path, value: str) -> None:
    """At either end of its range, whatever else has its default; and what is ordered is in order."""
    config = read(_alone(path, value))
    (route,) = config.routes
    for upstream in (config.upstream, config.upstream_for(route)):
        assert upstream.answer_within <= upstream.response_timeout
    assert route.in_flight.wait <= route.in_flight.max_wait
    assert route.retention.replay <= route.retention.remember
    if route.settle is not None:
        assert config.upstream_for(route).response_timeout + 30.0 <= route.settle


@pytest.mark.parametrize(
    ("everywhere", "route", "answer_within", "response_timeout"),
    [
        ("", "", "30s", "10m"),
        (", response_timeout: 2s", "", "2s", "2s"),
        (", answer_within: 20m", "", "20m", "20m"),
        ("", "upstream: {response_timeout: 2s}", "2s", "2s"),
        ("", "upstream: {answer_within: 20m}", "20m", "20m"),
        (", response_timeout: 2s", "upstream: {response_timeout: 1m}", "30s", "1m"),
        (", response_timeout: 2s", "upstream: {answer_within: 1s}", "1s", "2s"),
        (", answer_within: 20m", "upstream: {answer_within: 5s}", "5s", "10m"),
        ("", f"recovery: {{probe: {{{PROBE}, settle: 45s}}}}", "15s", "15s"),
        ("", f"recovery: {{probe: {{{PROBE}, settle: 2h}}}}", "30s", "10m"),
        (", response_timeout: 5m", f"recovery: {{probe: {{{PROBE}, settle: 330s}}}}", "30s", "5m"),
    ],
)
def test_the_times_of_an_attempt_follow_what_is_written(
    everywhere: str, route: str, answer_within: str, response_timeout: str
) -> None:
    """For all routes or for one, and what is written for all counts where the route writes nothing."""
    config = read(with_route(route).replace("9000}", f"9000{everywhere}}}"))
    upstream = config.upstream_for(config.routes[0])
    assert duration_text(upstream.answer_within) == answer_within
    assert duration_text(upstream.response_timeout) == response_timeout
