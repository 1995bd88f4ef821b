"""A real pgbouncer in transaction mode in front of a Postgres server of the tests."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from tests.support import programs
from tests.support.ports import free_port
from tests.support.postgres import unprivileged_account
from tests.support.processes import spawn
from tests.support.server_process import ServerProcess, is_listening

# Fewer than the gateways open, so that sessions change hands.
POOL_SIZE = 4


class PgBouncer(ServerProcess):
    """It leads to every database of the server; sessions are shared, one transaction at a time.

    A `stop` waits for who is connected.
    """

    _stop_signal = signal.SIGINT

    def __init__(self, target_url: str, directory: Path) -> None:
        """`directory` becomes the pooler's and must not exist."""
        self.port = free_port()
        target = urlsplit(target_url)
        self.url = f"postgresql://{target.username}@127.0.0.1:{self.port}/postgres?pgbouncer=true"
        self.log = directory / "pgbouncer.log"
        self.directory = directory
        self._account = unprivileged_account()
        directory.mkdir(mode=0o755)
        users = directory / "users.txt"
        users.write_text(f'"{target.username}" ""\n')
        self._settings = directory / "pgbouncer.ini"
        self._settings.write_text(
            f"""[databases]
* = host={target.hostname} port={target.port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = {POOL_SIZE}
max_client_conn = 500
"""
        )

    def _spawned(self) -> subprocess.Popen[bytes]:
        command = [str(programs.pgbouncer().path), str(self._settings)]
        return spawn(command, output=self.log, account=self._account, directory=self.directory)

    def _serves(self) -> bool:
        return is_listening(self.port)
