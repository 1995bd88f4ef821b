"""Several real Redis servers as one: a cluster, or a master with replicas that sentinels watch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import redis

from tests.support.eventually import eventually_blocking
from tests.support.redis import GATEWAY_USER, RedisServer

FORM_SECONDS: Final = 60.0
NODE_TIMEOUT_MILLISECONDS: Final = 1500
_SLOTS: Final = 16384
# The bus of a cluster is at a fixed distance from the port.
_BUS: Final = 10_000

_numbers = itertools.count(1)


def command(server: RedisServer, *words: str | int | bytes) -> Any:
    with server.client() as client:
        return client.execute_command(*words)


def follows(server: RedisServer) -> bool:
    """Whether it is a replica that has caught up with its master, and the master knows that."""
    try:
        with server.client() as client:
            seen = client.info("replication")
        if seen.get("master_link_status") != "up":
            return False
        with redis.Redis(seen["master_host"], seen["master_port"]) as master:
            known = master.info("replication")
    except redis.ConnectionError:
        # Whoever becomes a replica first lets go of its clients.
        return False
    replicas = (known[f"slave{number}"] for number in range(known.get("connected_slaves", 0)))
    return any(each["port"] == server.port and each["state"] == "online" for each in replicas)


class Cluster:
    """Masters that share the slots, and a replica of each where that is asked for."""

    def __init__(self, directory: Path, masters: int, *, has_replicas: bool, options: Sequence[str] = ()) -> None:
        self.servers = [
            RedisServer(
                directory / f"cluster-{next(_numbers)}",
                bus=_BUS,
                options=(
                    *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
                    *("--cluster-node-timeout", str(NODE_TIMEOUT_MILLISECONDS), "--repl-ping-replica-period", "1"),
                    *options,
                ),
            )
            for _ in range(masters * (1 + has_replicas))
        ]
        self.masters = self.servers[:masters]
        self.replicas = self.servers[masters:]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def start(self) -> None:
        for server in self.servers:
            server.start()
        share = -(-_SLOTS // len(self.masters))
        for number, master in enumerate(self.masters):
            command(master, "CLUSTER", "ADDSLOTS", *range(number * share, min(_SLOTS, (number + 1) * share)))
            # Epochs that differ from the start need no conflict to be settled.
            command(master, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in self.servers[1:]:
            command(server, "CLUSTER", "MEET", "127.0.0.1", self.servers[0].port)
        self._wait(lambda server: len(self._nodes(server)) == len(self.servers), "all nodes know each other")
        for master, replica in zip(self.masters, self.replicas, strict=False):
            command(replica, "CLUSTER", "REPLICATE", self.id_of(master))
        self._wait(self._serves, "the cluster serves")

    def stop(self) -> None:
        for server in self.servers:
            server.kill()

    def id_of(self, server: RedisServer) -> str:
        return str(command(server, "CLUSTER", "MYID").decode())

    def owner_of(self, slot: int) -> RedisServer:
        for first, last, (_, port, *_), *_ in self._slots():
            if first <= slot <= last:
                return self._at(port)
        raise AssertionError(f"slot {slot} has no master")

    def slots_of(self, server: RedisServer) -> list[range]:
        return [range(first, last + 1) for first, last, (_, port, *_), *_ in self._slots() if port == server.port]

    def current_masters(self) -> list[RedisServer]:
        return [self._at(port) for _, _, (_, port, *_), *_ in self._slots()]

    def replica_of(self, master: RedisServer) -> RedisServer:
        return next(self._at(replica[1]) for _, _, (_, port, *_), replica in self._slots() if port == master.port)

    def is_whole(self) -> bool:
        """Whether every server is there and knows of a replica of each master, which follows it."""
        if not all(server.answers() and self._serves(server) for server in self.servers):
            return False
        masters = self.current_masters()
        return all(follows(server) for server in self.servers if server not in masters)

    def _slots(self) -> Any:
        return command(next(server for server in self.servers if server.answers()), "CLUSTER", "SLOTS")

    def _at(self, port: int) -> RedisServer:
        return next(server for server in self.servers if server.port == port)

    def begin_move(self, slot: int, target: RedisServer) -> RedisServer:
        """Let a slot be on its way; returns where it comes from."""
        source = self.owner_of(slot)
        command(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        command(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        return source

    def move_keys(self, slot: int, source: RedisServer, target: RedisServer, wanted: Callable[[bytes], bool]) -> int:
        keys = [key for key in command(source, "CLUSTER", "GETKEYSINSLOT", slot, 10_000) if wanted(key)]
        for key in keys:
            command(source, "MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
        return len(keys)

    def end_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        self.move_keys(slot, source, target, lambda _: True)
        for server in (target, source, *self.masters):
            command(server, "CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))

    def _nodes(self, server: RedisServer) -> list[bytes]:
        lines = command(server, "CLUSTER", "NODES").splitlines()
        return [line for line in lines if b"handshake" not in line.split()[2]]

    def _serves(self, server: RedisServer) -> bool:
        info = command(server, "CLUSTER", "INFO")
        rest = self.replicas and [slots for slots in command(server, "CLUSTER", "SLOTS") if len(slots) < 4]
        return b"cluster_state:ok" in info and not rest

    def _wait(self, holds: Callable[[RedisServer], bool], what: str) -> None:
        eventually_blocking(lambda: all(map(holds, self.servers)), FORM_SECONDS, what)


class Watched:
    """A master with a replica, and sentinels that promote it."""

    NAME: Final = "mymaster"

    def __init__(self, directory: Path, *, replicas: int = 1, keeps: bool = False) -> None:
        """With `keeps`, the servers keep operations alone."""
        options = GATEWAY_USER if keeps else ()
        self.servers = [
            RedisServer(directory / f"watched-{next(_numbers)}", append_only=keeps, options=options)
            for _ in range(1 + replicas)
        ]
        self.sentinels = [Sentinel(directory / f"sentinel-{next(_numbers)}") for _ in range(3)]

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{places}/{self.NAME}/0"

    @property
    def durable_url(self) -> str:
        return self.url.replace("://", "://gateway:any@") + "?sentinel_username=default&sentinel_password=any"

    def start(self) -> None:
        for server in self.servers:
            server.start()
        first, *replicas = self.servers
        for replica in replicas:
            command(replica, "REPLICAOF", "127.0.0.1", first.port)
        eventually_blocking(lambda: all(map(follows, replicas)), FORM_SECONDS, "the replicas follow")
        for sentinel in self.sentinels:
            sentinel.watch(self.NAME, first.port, quorum=len(self.sentinels) // 2 + 1)
            sentinel.start()
        eventually_blocking(lambda: all(map(self._knows_all, self.sentinels)), FORM_SECONDS, "all know each other")

    def stop(self) -> None:
        for server in (*self.sentinels, *self.servers):
            server.kill()

    @property
    def master(self) -> RedisServer:
        _, port = command(self.sentinels[0], "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.NAME)
        return next(server for server in self.servers if server.port == int(port))

    def _knows_all(self, sentinel: RedisServer) -> bool:
        with sentinel.client() as client:
            state = client.info("sentinel")["master0"]
        return (state["slaves"], state["sentinels"]) == (len(self.servers) - 1, len(self.sentinels))


class Sentinel(RedisServer):
    """A server that watches others: the same program under another flag."""

    def watch(self, name: str, port: int, *, quorum: int, lines: Sequence[str] = ()) -> None:
        """To be called before `start`; `lines` are further ones of its configuration."""
        config = self.directory / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.directory}\n"
            f"sentinel monitor {name} 127.0.0.1 {port} {quorum}\n"
            f"sentinel down-after-milliseconds {name} 1000\nsentinel failover-timeout {name} 10000\n"
            + "".join(f"{line}\n" for line in lines)
        )
        self._options = (str(config), "--sentinel")


@contextmanager
def running(group: Cluster | Watched) -> Iterator[None]:
    try:
        group.start()
        yield
    finally:
        group.stop()
