"""A real Redis for the tests: started in a directory that goes away, stopped, killed, frozen."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support import programs
from tests.support.ports import free_port
from tests.support.processes import spawn
from tests.support.server_process import ServerProcess

CLIENT_SECONDS = 10.0


class Redis:
    """A server that answers under a URL, whoever runs it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def flush(self) -> None:
        with self.client() as client:
            client.flushdb()

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):
            return False

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(
            self.url, socket_timeout=CLIENT_SECONDS, socket_connect_timeout=CLIENT_SECONDS, retry=Retry(NoBackoff(), 0)
        )


# A user that may do everything but flush.
GATEWAY_USER = ("--user", "gateway", "on", "nopass", "~*", "&*", "+@all", "-flushall", "-flushdb")


class RedisServer(Redis, ServerProcess):
    """A server of our own. It keeps its port and URL over `stop` or `kill` and the next `start`.

    Its data is kept only with `append_only`, and then every write is on disk before it is answered.
    """

    def __init__(
        self,
        directory: Path,
        *,
        bus: int = 0,
        append_only: bool = False,
        options: tuple[str, ...] = (),
        through: Sequence[str] = (),
    ) -> None:
        """`directory` becomes the server's and must not exist; `options` are further words of its command line.

        `bus` is how far above its port the server takes another one. `through` is a command that becomes the one behind
        it, which starts the server.
        """
        self.port = free_port(beside=bus)
        super().__init__(f"redis://127.0.0.1:{self.port}/0")
        self.directory = directory
        self.log = directory / "server.log"
        self._through = through
        self._options = (
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""),
            *("--appendonly", "yes" if append_only else "no", "--appendfsync", "always", "--daemonize", "no"),
            *options,
        )
        directory.mkdir()

    @property
    def durable_url(self) -> str:
        """For a gateway that keeps operations here: of a user that may not flush, where there is `GATEWAY_USER`."""
        return self.url.replace("redis://", "redis://gateway:any@")

    def _spawned(self) -> subprocess.Popen[bytes]:
        # Not every server that is installed lets something be put under it; the one that is brought along does.
        program = programs.redis(is_default=bool(self._through))
        command = [*self._through, str(program.path), *self._options]
        return spawn(command, output=self.log, directory=self.directory)

    def _serves(self) -> bool:
        return self.answers()
