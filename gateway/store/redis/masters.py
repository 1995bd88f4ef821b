"""Which masters there are, and which slots each has.

A URL names the only one, or sentinels name it, or any node of a cluster names all. Who asks goes on to look at the
server that was named: `node` sees whether it takes writes, and a node of a cluster refuses slots that it does not have.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from gateway.store.base import NotApplied, StoreError
from gateway.store.redis.connection import CONNECT_SECONDS, Access, Address, Link, info_lines, refusal
from gateway.store.redis.copies import SLOTS

# By master, the slots that it has.
Found = Mapping[Address, Sequence[range]]

_ALL_SLOTS: Final = (range(SLOTS),)
# A silent sentinel holds up a look for so long, and no request.
_ASK_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 5.0
_UNDECIDED_SECONDS: Final = 0.25


class Masters:
    """The server that the URL names."""

    look_seconds: float | None = None
    """How often to look again although nothing has happened; None: never."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def find(self, known: Collection[Address]) -> Found:
        """The masters now; `known` are those of the last look. Raises StoreError."""
        return {self._access.seeds[0]: _ALL_SLOTS}

    async def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` when a server reports another master. Until cancelled, if any server reports one."""

    async def close(self) -> None:
        """Close what is open between looks."""


def masters_of(access: Access) -> Masters:
    return {"sentinel": _Sentinels, "cluster": _Cluster}.get(access.kind, Masters)(access)


class _Sentinels(Masters):
    """The master that most sentinels name, of those that reply."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self.look_seconds = _LOOK_SECONDS
        self._name = access.name
        self._links = [access.sentinel_link(address) for address in access.seeds]
        self._listening = [access.sentinel_link(address) for address in access.seeds]

    async def find(self, known: Collection[Address]) -> Found:
        replies = await asyncio.gather(*map(self._ask, self._links))
        votes = Counter(reply for reply in replies if isinstance(reply, Address))
        if not votes:
            raise NotApplied(f"no sentinel names a master: {'; '.join(str(reply) for reply in replies)}")
        # The others follow the one that has switched within seconds.
        self.look_seconds = _LOOK_SECONDS if len(votes) == 1 else _UNDECIDED_SECONDS
        ((address, number),) = votes.most_common(1)
        if 2 * number <= votes.total() and (kept := [each for each in known if each in votes]):
            # Undecided: they name the new one soon, or the old one again.
            return {kept[0]: _ALL_SLOTS}
        return {address: _ALL_SLOTS}

    async def _ask(self, link: Link) -> Address | str:
        """The master's address, or why this sentinel names none."""
        try:
            await link.connect()
            (reply,) = await link.exchange([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)], _ASK_SECONDS)
        except StoreError as error:
            return str(error)
        match reply:
            case [bytes(host), bytes(port)]:
                return Address(host.decode(), int(port))
            case None:
                return f"the sentinel at {link.address} knows no master {self._name}"
        return f"the sentinel at {link.address} refused: {refusal(reply) or 'no address'}"

    async def listen(self, wake: Callable[[], None]) -> None:
        """One sentinel is listened to at a time. A report that is lost is made up for by the next look."""
        for link in itertools.cycle(self._listening):
            try:
                await link.connect()
                link.send([("SUBSCRIBE", "+switch-master")])
                async for message in link.messages():
                    if message[0] == b"message" and message[2].split()[:1] == [self._name.encode()]:
                        wake()
            except StoreError:
                pass
            finally:
                await link.close()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def close(self) -> None:
        for link in (*self._links, *self._listening):
            await link.close()


class _Cluster(Masters):
    """The masters that a node of the cluster names. One that has lost its slots says so itself: MOVED."""

    async def find(self, known: Collection[Address]) -> Found:
        asked = dict.fromkeys((*known, *self._access.seeds))
        views = await asyncio.gather(*map(self._ask, asked))
        # A node that was cut off goes on with what it knew. Each failover, and each slot that moves, raises the epoch.
        best = max((view for view in views if not isinstance(view, str)), default=None, key=lambda view: view[:2])
        if best is None:
            raise NotApplied("; ".join(str(view) for view in views))
        return best[2]

    async def _ask(self, address: Address) -> tuple[bool, int, Found] | str:
        """Whether the node serves, the epoch, and the masters; or why there is no reply. Links are not kept, because
        this is rare."""
        link = self._access.link(address)
        try:
            await link.connect()
            slots, info = await link.exchange([("CLUSTER", "SLOTS"), ("CLUSTER", "INFO")], CONNECT_SECONDS)
        except StoreError as failure:
            return str(failure)
        finally:
            await link.close()
        if "cluster support disabled" in str(slots):
            return f"{link} is not a node of a cluster; write redis://{address}"
        if error := refusal(slots) or refusal(info):
            return f"{link} refused CLUSTER SLOTS or CLUSTER INFO: {error}"
        if not (found := _masters_in(slots, address)):
            return f"{link} knows of no slots: the cluster has yet to be made"
        lines = info_lines(info)
        return lines.get("cluster_state") == "ok", int(lines.get("cluster_current_epoch", 0)), found


def _masters_in(slots: Sequence[Any], asked: Address) -> dict[Address, list[range]]:
    """Decode a reply of CLUSTER SLOTS."""
    found: dict[Address, list[range]] = {}
    for first, last, (host, port, *_), *_ in slots:
        # Without a host: as the node that was asked.
        address = Address(host.decode() if host and host != b"?" else asked.host, port)
        found.setdefault(address, []).append(range(first, last + 1))
    return found
