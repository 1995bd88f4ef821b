"""How identity recipes stand in a store, and what an agreement on them comes to. Pure: values in, values out.

A recipe stands under a text of service and operation name. Programs before this one wrote the operation name alone.
What stands there and equals ours is ours, because a recipe has the service in it; what differs may be ours from before
a change.

An operation that the store has no recipe of for this service may be new, or another service's of the same name that
came here, and then none of its keys would be known any more. Nobody but its operator can tell, so that is a conflict
like every other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gateway.store.base import RecipeConflict


@dataclass(slots=True)
class Comparison:
    """What to write down if there is no conflict, and which operation names are one if they have living keys."""

    written: dict[str, bytes] = field(default_factory=dict)
    """Recipes, by the text under which each stands from now on."""
    removed: list[str] = field(default_factory=list)
    """Texts under which nothing stands any more."""
    doubtful: dict[str, bool] = field(default_factory=dict)
    """By operation name: whether the keys of this service alone count, or those of all."""
    others: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By operation name: the services that have one of it, where this one had none."""

    def conflicts(self, alive: Mapping[str, int]) -> list[RecipeConflict]:
        """Those of the doubtful names that have living keys."""
        return [
            RecipeConflict(operation, alive[operation], self.others.get(operation, ()))
            for operation in self.doubtful
            if alive.get(operation)
        ]


def text_of(service: str, operation: str) -> str:
    """What the recipe stands under. Neither name can have a slash."""
    return f"{service}/{operation}"


def compare(
    known: Mapping[str, bytes], service: str, recipes: Mapping[str, bytes], accept: frozenset[str]
) -> Comparison:
    """Compare what the store has with this service's recipes; what changed and is in `accept` is no question."""
    comparison = Comparison()
    for operation, recipe in sorted(recipes.items()):
        text = text_of(service, operation)
        own, nameless = known.get(text), known.get(operation)
        if own != recipe:
            comparison.written[text] = recipe
        if nameless == recipe:
            comparison.removed.append(operation)
        before = nameless if own is None else own
        if before == recipe or operation in accept:
            continue
        others = _others(known, operation) if own is None else ()
        if before is not None or others:
            comparison.doubtful[operation] = own is not None
            comparison.others[operation] = others
    return comparison


def strays(known: Collection[str], service: str, operations: Collection[str]) -> list[str]:
    """The operation names that recipes of this service stand under, or nobody's, but for these `operations`."""
    found = {text.removeprefix(text_of(service, "")) for text in known}
    return sorted(name for name in found if "/" not in name and name not in operations)


def _others(known: Mapping[str, bytes], operation: str) -> tuple[str, ...]:
    """The services with an operation of this name."""
    pairs = (text.partition("/") for text in sorted(known))
    return tuple(service for service, slash, name in pairs if slash and name == operation)


def what_would_be_lost(service: str, conflicts: list[RecipeConflict]) -> str:
    """Why a service must not start, and what can be done."""
    named = "; ".join(f"{conflict.operation} with {conflict.alive} living keys" for conflict in conflicts)
    others = ", ".join(sorted({other for conflict in conflicts for other in conflict.others}))
    if others:
        return (
            f"the store does not know these operations of the service {service}, and others have operations of the "
            f"same name ({others}): {named}. If they are now {service}'s, their keys are unknown, so that retries of "
            "them would run again: undo the change, or wait until the keys are forgotten (retention.remember). If "
            "these are other operations that are to share the store, say so with `identity_change: accept` on the "
            "routes concerned, for one start."
        )
    return (
        f"the service name, operation name, scope or key settings changed for: {named}. Under the new settings these "
        "keys are unknown, so that retries of them would run again. Undo the change, wait until the keys are forgotten "
        "(retention.remember), or accept the loss with `identity_change: accept` on the routes concerned."
    )
