"""One way for one policy: what decides about a request is asked in one place of the program.

A second place that asks is a second way, which drifts from the first. Operators' commands (`admin`) are no part of a
request's way, and the stores execute the table of the lifecycle each on its own rows; neither is looked at.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "gateway"
_ON_THE_WAY = ("http", "callers", "protect", "upstream")

# The name of what decides, a method's behind a point, and the function that asks it.
POLICIES = {
    # Rule 2: what may be read in two ways.
    "examine": ["http/handler.py Handler._examine"],
    "examine_closely": ["protect/ambiguity.py examine"],
    "ambiguity": ["protect/ambiguity.py examine_closely", "protect/observing.py Observing._identified"],
    "framing_fault": ["protect/ambiguity.py examine_closely"],
    # Rules 4 to 7: what it is, and whose.
    ".identify": ["protect/coordinator.py Coordinator.respond", "protect/observing.py Observing._identified"],
    # In a body, as the ordering value is, a key is found where the body is read.
    ".find_key": [
        "protect/identification.py _key_and_scope",
        # Which keys are enforced where a share of them is.
        "protect/route.py Route.for_key",
    ],
    # Signatures: of a webhook, and of a token by its library.
    ".verify": ["callers/key_set.py Key.verifies", "protect/identification.py _event"],
    ".verifies": ["callers/tokens.py TokenVerifier._verify"],
    "verify_claims": ["callers/tokens.py TokenVerifier._verify"],
    # At once where nothing has to be verified.
    ".find_scope": ["protect/identification.py Callers.find_caller", "protect/identification.py _key_and_scope"],
    ".find_caller": [
        "protect/identification.py _caller",
        "protect/resource.py StatusResource._find_callers",
    ],
    ".authorize": ["protect/identification.py _authorize", "protect/resource.py StatusResource._respond"],
    "authorization_request": ["callers/forward_auth.py ForwardAuth._question"],
    ".without": ["http/handler.py Handler._examine"],
    ".digests": ["protect/identification.py _operation"],
    "identity_of": ["protect/identification.py _operation"],
    # Rules 9 to 19: what the record says, to a claim and to a request that does not claim.
    "judge": ["protect/request.py Request.judge"],
    ".claim": ["protect/operation.py Operations._run"],
    ".claim_kept": ["protect/operation.py Operations._run"],
    "replay_of": ["protect/compose.py reply_by_judgement", "protect/resource.py StatusResource._result_of"],
    "wait_preference": ["protect/duplicates.py _wait_limit", "protect/resource.py StatusResource._wait"],
    "responds_async": ["protect/identification.py _preference"],
    # The first one is the call of a socket.
    ".accept": [
        "http/server.py Listener._accept",
        "protect/coordinator.py Coordinator._accept",
        "protect/inbox.py Receiving.receive",
    ],
    "may_recover": ["protect/claiming.py Claiming.may_recover"],
    # The attempt: what is sent, and what came of it.
    "protected_request": ["protect/operation.py Operations._send"],
    "unprotected_request": ["http/passthrough.py Passthrough.__call__"],
    "conclude_answered": ["protect/conclusion.py answered"],
    "conclude_not_sent": ["protect/conclusion.py not_sent"],
    # What an attempt without effect comes to, where the request is kept.
    ".conclude_answered": ["protect/conclusion.py _undelivered"],
    ".conclude_unsent": ["protect/conclusion.py _undelivered"],
    "end_unused": [
        "protect/claiming.py Claiming._end_claim",
        # What a killed process of this host left, before the store has it.
        "protect/journaling.py Journaling.find",
        "protect/operation.py Operation.final_command",
    ],
    "conclude_unknown": ["protect/conclusion.py unknown"],
    ".kept_headers": ["protect/conclusion.py answered"],
    "without_response": ["protect/operation.py Operations._record"],
    # A service is asked in four ways: to execute once, to say what became of that, to show a repeat what was made, and
    # without protection. Another one is asked who may ask.
    ".exchange": [
        "callers/forward_auth.py ForwardAuth._decision",
        "http/passthrough.py Passthrough.__call__",
        "protect/coordinator.py Coordinator._fetch",
        "protect/operation.py Operations._send",
        "protect/probing.py Prober._exchange",
        "protect/regions.py Regions.send",
    ],
    # The reply: what a coding becomes, and how it is framed.
    "decode_unaccepted": ["http/handler.py _decoded"],
    "is_unaccepted": ["protect/compose.py _unaccepted_by"],
}


def _calls(module: ast.Module) -> Iterator[tuple[str, str]]:
    """The name of each function that is called, a method's behind a point, and the function that calls it."""

    def walk(node: ast.AST, names: tuple[str, ...], inner: bool) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.ClassDef(name=name):
                    yield from walk(child, (*names, name), inner=False)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    # A function in a function is a part of it.
                    yield from walk(child, names if inner else (*names, name), inner=True)
                case ast.Call(func=ast.Name(id=name)):
                    yield name, ".".join(names)
                    yield from walk(child, names, inner)
                case ast.Call(func=ast.Attribute(attr=name)):
                    yield f".{name}", ".".join(names)
                    yield from walk(child, names, inner)
                case _:
                    yield from walk(child, names, inner)

    yield from walk(module, (), inner=False)


@pytest.fixture(scope="module")
def callers() -> dict[str, list[str]]:
    """Who calls each function on a request's way."""
    found: dict[str, set[str]] = defaultdict(set)
    for room in _ON_THE_WAY:
        for path in sorted((ROOT / room).glob("*.py")):
            place = path.relative_to(ROOT)
            for name, caller in _calls(ast.parse(path.read_text("utf-8"))):
                found[name].add(f"{place} {caller}".rstrip())
    return {name: sorted(places) for name, places in found.items()}


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_is_asked_in_one_place(policy: str, callers: dict[str, list[str]]) -> None:
    """The place is the one that is written down."""
    assert callers.get(policy) == POLICIES[policy]
