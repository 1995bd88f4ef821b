"""How many workers there are, and each one's share of the configuration.

Configured limits are those of the whole gateway, so they do not depend on the number of its processes.
"""

from __future__ import annotations

from typing import Final, TypeVar

from gateway.app.cpus import processors
from gateway.config import Config
from gateway.config.delivery import RouteDelivery
from gateway.config.models import Admin
from gateway.config.section import DIVIDED, Section
from gateway.config.upstream import RouteUpstream

T = TypeVar("T", bound=Section)

# A worker has the admin port, because the port needs a store. Only one has it, because one has to count wrong tokens.
FIRST: Final = 1


def worker_count(config: Config) -> int:
    """How many processes serve."""
    return processors() if config.workers == "auto" else config.workers


def share_of(config: Config, number: int, count: int) -> Config:
    """The configuration of one of `count` workers. Limits that do not divide evenly are rounded up."""
    divided = _divided(config, count)
    return divided if number == FIRST else divided.model_copy(update={"admin": Admin()})


def _divided(section: T, count: int) -> T:
    parts: dict[str, object] = {}
    for name, field in type(section).model_fields.items():
        match getattr(section, name):
            case Section() as whole if (part := _divided(whole, count)) is not whole:
                parts[name] = part
            case (Section(), *_) as sections:
                divided = tuple(_divided(each, count) for each in sections)
                if any(part is not whole for part, whole in zip(divided, sections, strict=True)):
                    parts[name] = divided
            case int() as total if DIVIDED in field.metadata and _counts(section, name):
                parts[name] = -(-total // count)
    return section.model_copy(update=parts) if parts else section


def _counts(section: Section, name: str) -> bool:
    """Whether a setting is not one that a route inherits."""
    return name in section.model_fields_set or not isinstance(section, RouteUpstream | RouteDelivery)
