"""Which programs and gateways share a store: by their levels, and by what they serve.

Levels
------
*A level* is a number of a program. A release has the next one if it writes anything, or relies on anything, that the
release before does not know. Programs of two successive levels run on one store, and one Redis, for as long as wanted.

*The level of a store* says what may be written to it: no version of a format that a program of this level cannot read.
A new store has the level of the program that made it. After that `migrate --finish` alone raises it, and only while no
gateway of an older program runs. A program refuses a store of a later level, and one of a level before the last.

*Versions.* What is stored has the version of its format: records, outcomes in journals, kept requests, copies in Redis.
A program reads a range of versions, and never changes what it does not know. A copy in Redis of another version counts
as absent.

*Schemas.* A migration only adds what older programs do not notice. What is not needed any more goes with a program of
which no predecessor needs it. So a store's level, and not its schema, says whether a program may use it.

Configurations
--------------
A key is found by service, operation name, scope and key. If one of these changes for requests that clients repeat,
their keys are no longer found and they run a second time. So the store remembers the *recipe* of each operation name of
a service (how identities are made) and its *routes* (which requests lead to it, in routing order), and for each gateway
which operations it serves and when it was last seen running. A gateway compares its configuration with that before it
serves. Unless the routes that gain requests have `identity_change: accept`, a start is refused if

* *(recipe)* an operation has another recipe than before;
* *(route)* requests of an operation of this service now lead to another of its operations (`core.succession`): a route
  was renamed, two routes swapped names, or a new route takes a part of an older one's requests;
* *(service)* requests of an operation of another service now lead to an operation of this one: the service was renamed,
  or a route moved here;

and the operation has living keys. For the first two it also suffices that another gateway of this service runs and
serves the operation as it was: new keys may come at any moment, and two gateways that serve one request under two names
run it twice. The same rule decides between two gateways that start at once, because the store serialises them.

A start is refused likewise if an operation with living keys is enforced for a smaller share of its keys than before
(*mode*), unless its routes have `mode_change: accept`: what is only observed is not looked up. So it is if living keys
have fingerprints under a key that is not listed any more, or is another one under its id (*fingerprint*): their repeats
would be refused as other requests. An operation whose requests now match no route is only reported.

*Rename or second service.* Two services may share a database, with operations of the same name and the same routes: ids
contain the service. But *one* service under two names must be noticed. So an operation of another service whose
requests lead here counts as a second service's only if a running gateway serves it. After a rename in place none does:
a stopped gateway has noted that, and a killed one has not been seen for `RUNNING_US`. Otherwise only the operator
knows, and the start is refused; `identity_change: accept` for one start declares that it is another service. A service
that is renamed while gateways run under its old name cannot be detected; a running neighbour with the same requests is
therefore reported at the start.

What was accepted once is not asked again: requests that already led to this service's own operation are its own,
whatever other services remember, until another service takes them over from one that does not run. Operations that a
service no longer has stay remembered, behind its current ones in routing order: their keys live on, and a later route
may take their requests.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from gateway import PROGRAM, __version__
from gateway.core.confidential import Sealing
from gateway.core.identity.key import is_of
from gateway.core.operation import MICROSECONDS, State, moment
from gateway.core.outbox import EventType
from gateway.core.routing import PathPattern, Rule, ServedRoute, handed_over
from gateway.store.base import StartRefused
from gateway.store.operations import Agreement, Cold, Living, Neighbour, Query, RecipeConflict, Serving
from gateway.store.sealed import refuse_unreadable

# -- levels ------------------------------------------------------------------------------------------------------------

PROGRAM_LEVEL: Final = 1
"""The level of this program."""
OLDEST_LEVEL: Final = max(1, PROGRAM_LEVEL - 1)
"""The lowest level of a store that it serves."""

RECORD_VERSION: Final = 1
"""The version of the records that it writes."""
RECORD_VERSIONS: Final = range(1, RECORD_VERSION + 1)
"""Those that it reads."""
EVENT_TYPES: Final = ", ".join(f"'{each}'" for each in EventType)
"""The types of events that it publishes, as SQL lists them. It leaves others alone."""
JOURNAL_VERSION: Final = 1
"""The version of the outcomes that it writes to journals."""
JOURNAL_VERSIONS: Final = range(1, JOURNAL_VERSION + 1)
"""Those that it reads."""

_FINISH: Final = f"{PROGRAM} migrate --finish"
_NAMED_MAX: Final = 8


def why_refused(level: int) -> str | None:
    """Why this program must not use a store of this level; None if it may."""
    if level > PROGRAM_LEVEL:
        return (
            f"the store has level {level}, and this program, {__version__}, serves up to {PROGRAM_LEVEL}: `{_FINISH}` "
            "of a newer program has ended the upgrade. Run that program"
        )
    if level < OLDEST_LEVEL:
        return (
            f"the store has level {level}, and this program, {__version__}, serves {OLDEST_LEVEL} and later: no "
            f"release can be left out. Run one of level {OLDEST_LEVEL} everywhere, then its `{_FINISH}`, then this one"
        )
    return None


def why_unfinished(level: int) -> str | None:
    """What a store of a lower level than this program's means; None if it has this one."""
    if level >= PROGRAM_LEVEL:
        return None
    return (
        f"the store has level {level}, and this program has {PROGRAM_LEVEL}: what is new is off, and the release "
        f"before may still be used, until `{_FINISH}`"
    )


def check_level(level: int) -> None:
    """Raise `StartRefused` if this program must not use a store of this level."""
    if (why := why_refused(level)) is not None:
        raise StartRefused(why)


def check_finished(older: Sequence[tuple[UUID, str, int]]) -> None:
    """Raise `StartRefused` if gateways of an older program run (their ids, hosts and levels), so that the level must
    not be raised."""
    if older:
        named = [f"{gateway_id} on host {host} (level {level})" for gateway_id, host, level in older[:_NAMED_MAX]]
        more = [f"{len(older) - _NAMED_MAX} more"] if len(older) > _NAMED_MAX else []
        raise StartRefused(
            f"gateways of an older program still run: {', '.join(named + more)}. Upgrade or stop them first; one that "
            "was killed counts for a minute"
        )


# -- configurations ----------------------------------------------------------------------------------------------------

# So many of a route's accepted requests are looked at: those of another service may be among them.
_SAMPLE: Final = 100

RUNNING_US: Final = 60 * MICROSECONDS
"""For how long a gateway counts as running after it was last seen: four times the pause between two tallies."""
FORGOTTEN_US: Final = 86_400 * MICROSECONDS
"""After how long a gateway that was not seen is forgotten."""

Name = tuple[str, str]
"""A service and the name of one of its operations."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """An operation as the store remembers it.

    `routes` is JSON (`encode_routes`). `is_current`: it was in the last accepted configuration.
    """

    service: str
    operation: str
    recipe: bytes
    routes: str
    is_current: bool

    @property
    def name(self) -> Name:
        return self.service, self.operation

    @property
    def fingerprint_keys(self) -> dict[str, str]:
        """By id, the check of the secret."""
        return {key: check for route in json.loads(self.routes) for key, check in route["fingerprint_keys"].items()}


@dataclass(slots=True)
class Comparison:
    """What to write if there is no conflict, and which operations are conflicts if they have living keys, or another
    gateway of this service serves them."""

    service: str

    written: list[Remembered] = field(default_factory=list)
    questions: list[RecipeConflict] = field(default_factory=list)
    neighbours: list[Neighbour] = field(default_factory=list)

    @property
    def names(self) -> frozenset[Name]:
        """The operations whose living keys have to be counted."""
        return frozenset(question.name for question in self.questions)

    def agreement(self, living: Mapping[Name, Living]) -> Agreement:
        """The agreement, given these living keys."""
        conflicts = []
        for question in self.questions:
            counted = living.get(question.name, Living())
            if keys := question.fingerprint_keys:
                counted = replace(counted, keys=sum(counted.by_fingerprint_key.get(each, 0) for each in keys))
            if counted.keys or (question.service == self.service and question.is_served):
                conflicts.append(replace(question, living=counted))
        return Agreement(tuple(conflicts), tuple(self.neighbours))


def compare(known: Collection[Remembered], running: Collection[Name], serving: Serving) -> Comparison:
    """Compare what the store remembers with what a gateway is to serve; `running` is what the other gateways serve."""
    own = {row.operation: row for row in known if row.service == serving.service}
    service = serving.service
    comparison = Comparison(service, _to_be_written(own, serving))
    for operation, row in sorted((operation, row) for operation, row in own.items() if operation in serving.recipes):
        if row.recipe != serving.recipes[operation] and operation not in serving.accepted:
            comparison.questions.append(RecipeConflict(service, operation, is_served=row.name in running))
        if operation not in serving.mode_accepted and _is_enforced_less(_in_order([row]), serving.routes):
            comparison.questions.append(RecipeConflict(service, operation, is_mode=True))
        keys = {} if operation in serving.accepted | serving.compare_accepted else row.fingerprint_keys
        if lost := tuple(sorted(key for key, check in keys.items() if serving.fingerprint_keys.get(key) != check)):
            comparison.questions.append(RecipeConflict(service, operation, fingerprint_keys=lost))
    current = _in_order(row for row in own.values() if row.is_current)
    before, now = ([(route.operation, route.rule) for route in each] for each in (current, serving.routes))
    if before == now:
        return comparison
    past = _in_order(row for row in own.values() if not row.is_current)
    taken = handed_over(current + past, serving.routes)
    for name, heirs in _by_name(taken, serving.accepted).items():
        comparison.questions.append(RecipeConflict(*name, heirs=heirs, is_served=name in running))
    for service in sorted({row.service for row in known} - {serving.service}):
        _compare_service(comparison, [row for row in known if row.service == service], current, running, serving)
    return comparison


def _compare_service(
    comparison: Comparison,
    theirs: list[Remembered],
    current: list[ServedRoute],
    running: Collection[Name],
    serving: Serving,
) -> None:
    """Compare with another service: which of its operations' requests would lead to this one's from now on."""
    remembered = _in_order(row for row in theirs if row.is_current)
    remembered += _in_order(row for row in theirs if not row.is_current)
    taken = [pair for pair in handed_over(current + remembered, serving.routes) if pair[0].service != serving.service]
    apart = [pair for pair in taken if (pair[0].service, pair[0].operation) in running]
    unclear = [pair for pair in taken if pair not in apart]
    for name, heirs in _by_name(unclear, serving.accepted).items():
        comparison.questions.append(RecipeConflict(*name, heirs=heirs, is_served=name in running))
    for name, heirs in _by_name(apart, serving.accepted).items():
        comparison.neighbours.append(Neighbour(*name, heirs))
    succeeded = _by_name(unclear, frozenset()).keys() - set(running)
    comparison.written += [replace(row, is_current=False) for row in theirs if row.is_current and row.name in succeeded]


def _by_name(pairs: Iterable[tuple[ServedRoute, ServedRoute]], accepted: frozenset[str]) -> dict[Name, tuple[str, ...]]:
    """The heirs of each operation, except those that accept the loss."""
    heirs: dict[Name, set[str]] = {}
    for former, latter in pairs:
        if latter.operation not in accepted:
            heirs.setdefault((former.service, former.operation), set()).add(latter.operation)
    return {name: tuple(sorted(found)) for name, found in sorted(heirs.items())}


def _to_be_written(own: Mapping[str, Remembered], serving: Serving) -> list[Remembered]:
    written = []
    for name, recipe in sorted(serving.recipes.items()):
        routes = encode_routes(serving.routes, name, serving.fingerprint_keys)
        wanted = Remembered(serving.service, name, recipe, routes, is_current=True)
        written += [wanted] if wanted != own.get(name) else []
    gone = [row for name, row in sorted(own.items()) if row.is_current and name not in serving.recipes]
    return written + [replace(row, is_current=False) for row in gone]


def encode_routes(routes: Iterable[ServedRoute], operation: str, fingerprint_keys: Mapping[str, str]) -> str:
    """The routes of one operation as the store keeps them, each with its place among all routes of the service."""
    return json.dumps(
        [
            {
                "order": order,
                "methods": sorted(method.decode("latin-1") for method in route.rule.methods),
                "host": None if route.rule.host is None else route.rule.host.decode("latin-1"),
                "path": route.rule.path.text,
                "enforced": route.enforced,
                "fingerprint_keys": dict(sorted(fingerprint_keys.items())),
            }
            for order, route in enumerate(routes)
            if route.operation == operation
        ]
    )


def _in_order(rows: Iterable[Remembered]) -> list[ServedRoute]:
    """The routes of these operations in routing order."""
    ordered = []
    for row in rows:
        for route in json.loads(row.routes):
            methods = frozenset(method.encode("latin-1") for method in route["methods"])
            host = None if route["host"] is None else route["host"].encode("latin-1")
            rule = Rule(methods, PathPattern.parse(route["path"]), host)
            ordered.append((route["order"], ServedRoute(row.service, row.operation, rule, route["enforced"])))
    return [route for _, route in sorted(ordered, key=lambda pair: pair[0])]


def _is_enforced_less(before: Sequence[ServedRoute], after: Iterable[ServedRoute]) -> bool:
    """Whether a smaller share of an operation's keys is enforced than before: on one route, or on its weakest."""
    operation = before[0].operation if before else None
    now = [route for route in after if route.operation == operation]
    if not before or not now:
        return False
    if any(new.rule == old.rule and new.enforced < old.enforced for old in before for new in now):
        return True
    return min(route.enforced for route in now) < min(route.enforced for route in before)


def names_without_route(known: Collection[Remembered], service: str, operations: Collection[str]) -> frozenset[Name]:
    """The remembered operations of this service, except those in `operations`."""
    return frozenset(row.name for row in known if row.service == service and row.operation not in operations)


# -- messages ---------------------------------------------------------------------------------------------------------

_RUN_AGAIN: Final = "these keys are unknown, and a repeat of an old request would run again"
_UNDO: Final = "Undo the change, wait until the keys are forgotten, or accept that with"
_ACCEPT: Final = "`identity_change: accept`"
_FINGERPRINT: Final = (
    "secrets.fingerprint_key has lost {keys}, or has another secret under that id: repeats of these operations' "
    "requests could not be compared, and would be refused as key-reused although they are the same: {named}. List that "
    f"key behind the current one until these keys are forgotten, or accept that with {_ACCEPT} on their routes"
)
_RECIPES: Final = (
    "the scope or key settings of these operations changed, or secrets.identity_key or regions did: {named}. Under the "
    f"new settings {_RUN_AGAIN}. {_UNDO} {_ACCEPT} on their routes"
)
_RECIPE: Final = (
    "the scope or key settings of operation {operation} changed, or secrets.identity_key or regions did ({living}): "
    f"under the new settings {_RUN_AGAIN}. {_UNDO} {_ACCEPT} on its routes"
)
_MODE: Final = (
    "operation {operation} ({living}) is now observed, or enforced for a smaller share of its keys: a repeat of an old "
    f"request would no longer get its recorded response, but run again. {_UNDO} `mode_change: accept` on its routes"
)
_ROUTE: Final = (
    f"requests of operation {{operation}} ({{living}}) now lead to {{heirs}}: under that name {_RUN_AGAIN}. Set "
    "`operation: {operation}` on {one} to keep the keys, wait until they are forgotten, or accept the loss with "
    f"{_ACCEPT} on {{one}}"
)
_SERVICE: Final = (
    "requests of operation {operation} of service {other}, which does not run or no longer serves it ({living}), now "
    f"lead to {{heirs}} of service {{service}}. If this is service {{other}} under a new name, {_RUN_AGAIN}: keep the "
    "name with `service: {other}`, or wait until the keys are forgotten. If it is another service, or the loss is "
    f"accepted, set {_ACCEPT} on {{one}} for one start"
)
_NEIGHBOUR: Final = (
    "service {other} runs, and its operation {operation} has the same requests as {heirs} of service {service}: they "
    "count as two services. If {service} is {other} under a new name, a repeat of an old request runs again: stop this "
    "gateway and keep the name with `service: {other}`"
)
_STRANDED: Final = (
    "route {route} has {waiting} accepted requests that wait, and no route of this configuration delivers them: give "
    "the route back, with its `accept`, or call each off with withdraw, before its deadline makes it a dead letter; "
    "inspect --list --state accepted --route {route} lists them"
)
_WITHOUT_ROUTE: Final = (
    "operation {operation} has {alive} living keys and no route: a repeat of one of its requests is not recognised, "
    'and runs again if it is forwarded; a route with "operation: {operation}" finds these keys'
)


def conflicts_text(serving: Serving, conflicts: Iterable[RecipeConflict]) -> str:
    """Explain why a gateway must not start, and what to do. What is the same of several operations is said once."""
    listed = list(conflicts)
    lost = [each for each in listed if each.fingerprint_keys]
    changed = [each for each in listed if not each.heirs and not each.is_mode and each not in lost]
    together = changed if len(changed) > 1 else []
    found = [_RECIPES.format(named=_named(together))] if together else []
    found += [_loss(serving, each) for each in listed if each not in lost and each not in together]
    if lost:
        keys = ", ".join(sorted({key for each in lost for key in each.fingerprint_keys}))
        found.append(_FINGERPRINT.format(keys=keys, named=_named(lost)))
    return "; ".join(found)


def _loss(serving: Serving, conflict: RecipeConflict) -> str:
    if conflict.is_mode:
        text = _MODE
    elif not conflict.heirs:
        text = _RECIPE
    else:
        text = _ROUTE if conflict.service == serving.service else _SERVICE
    return text.format(
        operation=conflict.operation,
        living=_living(conflict),
        heirs=_listed(conflict.heirs),
        one="its route" if len(conflict.heirs) == 1 else "their routes",
        other=conflict.service,
        service=serving.service,
    )


def _named(conflicts: Iterable[RecipeConflict]) -> str:
    return ", ".join(f"{each.operation} ({_living(each)})" for each in conflicts)


def _living(conflict: RecipeConflict) -> str:
    keys, until_us = conflict.living.keys, conflict.living.until_us
    if not keys:
        return "no living keys yet, but another running gateway of this service serves it"
    until = "until the last of them is resolved" if until_us is None else f"until {moment(until_us)}"
    return f"{keys} living {'key' if keys == 1 else 'keys'}, {until}"


def _listed(names: tuple[str, ...]) -> str:
    return f"operation{'' if len(names) == 1 else 's'} {', '.join(names)}"


# -- a start -----------------------------------------------------------------------------------------------------------


async def agree(store: Cold, serving: Serving, sealing: Sealing, *, is_trial: bool = False) -> list[str]:
    """Have the store remember what a gateway serves, unless it is a trial; returns what to warn of. Raises
    `StartRefused` where that would lose living keys, or what is encrypted could not be read."""
    agreement = await store.compare_configuration(serving, is_trial=is_trial)
    if agreement.conflicts:
        raise StartRefused(conflicts_text(serving, agreement.conflicts))
    if serving.key_ids is not None:
        await refuse_unreadable((await store.tally()).sealed, serving.key_ids, store.sealed_examples, sealing)
    return [
        _NEIGHBOUR.format(
            other=each.service, operation=each.operation, heirs=_listed(each.heirs), service=serving.service
        )
        for each in agreement.neighbours
    ]


async def strays(store: Cold, serving: Serving) -> list[str]:
    """Warns of living keys that no route of this configuration finds, and of accepted requests that none delivers."""
    without_route = await store.count_without_route(serving.service, serving.recipes)
    stranded = await _stranded(store, serving)
    return [
        *(_WITHOUT_ROUTE.format(operation=each, alive=alive) for each, alive in sorted(without_route.items())),
        *(_STRANDED.format(route=route, waiting=number) for route, number in sorted(stranded.items())),
    ]


async def _stranded(store: Cold, serving: Serving) -> dict[str, int]:
    """How many accepted requests wait that no route of this configuration delivers, by the name of their route."""
    found: dict[str, int] = {}
    if serving.delivering is None:
        return found
    delivered = {name for name, _ in serving.delivering.accepting}
    for route, waiting in (await store.backlog(serving.service)).waiting.items():
        if not waiting.accepted or route in delivered:
            continue
        query = Query(states=frozenset((State.ACCEPTED,)), routes=frozenset((route,)), limit=_SAMPLE)
        for snapshot in await store.find(query):
            identity = None if snapshot.record is None else snapshot.record.identity
            # Another service may have a route of this name.
            if identity is None or not is_of(identity, serving.service, identity.operation):
                continue
            if not serving.delivering.includes(identity):
                found[route] = waiting.accepted
                break
    return found
