"""What two configurations differ in, and a digest of one. No value leaves this module.

All settings but those of `NEEDS_RESTART` can change while the gateway runs.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from gateway.config.effective import effective
from gateway.config.models import Config
from gateway.config.route import Route
from gateway.config.section import Section

NEEDS_RESTART: Final = ("listen.address", "workers")
_DIGEST_CHARACTERS: Final = 12


def changes(before: Config, after: Config) -> list[str]:
    """The paths of all settings that differ, in the order of the models. That a default is written counts as a
    difference, since others follow it."""
    found: list[str] = []
    _compare(before, after, "", found)
    return found


def digest_of(config: Config) -> str:
    """A short digest of all settings, by which two gateways can be compared. Secrets are not in it: a short digest of
    a weak one could be guessed."""
    return sha256(effective(config).encode()).hexdigest()[:_DIGEST_CHARACTERS]


def _compare(before: object, after: object, path: str, found: list[str]) -> None:
    if isinstance(before, Section) and type(before) is type(after) and isinstance(after, Section):
        for name, field in type(before).model_fields.items():
            key = field.alias or name
            place = f"{path}.{key}" if path else key
            one, other = getattr(before, name), getattr(after, name)
            count = len(found)
            _compare(one, other, place, found)
            if count == len(found) and (name in before.model_fields_set) != (name in after.model_fields_set):
                found.append(place)
    elif _are_routes(before) and _are_routes(after):
        _compare_routes(before, after, path, found)  # type: ignore[arg-type]
    elif isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after) and _has_sections(before):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            _compare(one, other, f"{path}[{index}]", found)
    elif before != after:
        found.append(path)


def _compare_routes(before: tuple[Route, ...], after: tuple[Route, ...], path: str, found: list[str]) -> None:
    """By name: a route that comes in front is one change, and not one of each behind it."""
    old, new = ({route.name: route for route in routes} for routes in (before, after))
    for name in dict.fromkeys((*old, *new)):
        if name in old and name in new:
            _compare(old[name], new[name], f"{path}[{name}]", found)
        else:
            found.append(f"{path}[{name}]")
    if [name for name in old if name in new] != [name for name in new if name in old]:
        found.append(path)


def _are_routes(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(each, Route) for each in value)


def _has_sections(value: tuple[object, ...]) -> bool:
    return any(isinstance(each, Section) for each in value)
