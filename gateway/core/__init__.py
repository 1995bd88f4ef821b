"""What is true. Pure: no clock, no I/O, no logging, no third-party import but ciphers, signatures and parsers.

*The life of an operation.* `operation` has the nouns, the history for people among them, and `lifecycle` the table.
`verdict` decides what a request gets, `outcome` what an attempt comes to, `recovery` how doubt is resolved, `delivery`
when a kept request is sent again and whether an upstream is tried at all, and which one goes first where order is kept.
`observation` finds what enforcement would have done with what was only observed.

*Which operation a request is about, and whether it is the same request:* `identity`. *Who sent a webhook, which event
it is, and how webhooks are signed:* `webhook`.

*HTTP as values.* `message` has heads and headers, `outcome` what a response says of itself, what is kept of it, and
which of its values are replaced before that, too. `routing` decides which route a path meets, what else services may
read from a path, and which operations lose requests when routes change.

*What others are sent.* `outbox` has the events of changes, `webhook` decides which addresses a webhook may have.

*Beneath all of these.* A value is declared here, `identity.body` digests parts so that they cannot run into one
another, `confidential` encrypts values, and says which of them are.

Entered by lifecycle.step, verdict.judge, outcome.conclude_answered, routing.RouteTable.
Imports no other room.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable(cls: type[T]) -> type[T]:
    """Make the class a value: compared and hashed by its fields, never modified.

    The type checker sees a frozen dataclass, so `make lint` refuses an assignment. At run time it is an ordinary one
    with slots: a frozen one sets each field through `object.__setattr__`, which takes six times as long, and a request
    makes some twenty of them.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
