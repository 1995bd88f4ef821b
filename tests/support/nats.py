"""A real NATS with JetStream for the tests: its data is kept over `stop` or `kill` and the next `start`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nats
from nats.js.api import StreamConfig

from tests.support.ports import free_port
from tests.support.processes import spawn
from tests.support.server_process import Broker, is_listening


class NatsServer(Broker):
    """It is started and ended as `Broker` says."""

    def __init__(self, directory: Path, **options: Any) -> None:
        """`options` are written into the server's configuration."""
        self.port = free_port()
        directory.mkdir(parents=True)
        self.directory, self.log = directory, directory / "log"
        self._file = directory / "nats.json"
        self._options = options
        self._configure(options)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def _spawned(self) -> subprocess.Popen[bytes]:
        program = Path(sys.prefix) / "bin" / "nats-server"
        return spawn([str(program), "-c", str(self._file)], output=self.log)

    def _serves(self) -> bool:
        return is_listening(self.port)

    def reload(self, **options: Any) -> None:
        """Let the running server use these options beside those of its start, instead of any of an earlier reload. It
        does so a moment later."""
        self._configure(self._options | options)
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    async def add_stream(self, name: str, *subjects: str, window_seconds: float = 600.0) -> None:
        client = await nats.connect(self.url)
        try:
            config = StreamConfig(name=name, subjects=list(subjects), duplicate_window=window_seconds)
            await client.jetstream().add_stream(config)
        finally:
            await client.close()

    async def messages(self, stream: str) -> list[tuple[str, dict[str, str], bytes]]:
        client = await nats.connect(self.url)
        try:
            jetstream = client.jetstream()
            last = (await jetstream.stream_info(stream)).state.last_seq
            found = []
            for sequence in range(1, last + 1):
                message = await jetstream.get_msg(stream, sequence)
                found.append((message.subject or "", dict(message.headers or {}), message.data or b""))
            return found
        finally:
            await client.close()

    def _configure(self, options: dict[str, Any]) -> None:
        own = {"listen": f"127.0.0.1:{self.port}", "jetstream": {"store_dir": str(self.directory / "data")}}
        self._file.write_text(json.dumps(own | options))
