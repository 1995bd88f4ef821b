"""The service behind the proxies of a benchmark: it gives the same answer to everything, at next to no cost.

`python -m tests.benchmarks.upstream PORT`.
"""

from __future__ import annotations

import asyncio
import sys
from functools import cache

import uvloop

from tests.benchmarks.messages import Messages

_BYTES = b"\nx-answer-bytes:"
_AFTER = b"\nx-answer-after:"


@cache
def answer(body_bytes: int) -> bytes:
    body = b'{"id": "ch_1", "note": "' + b"n" * (body_bytes - 26) + b'"}'
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class Service(Messages):
    """One connection of a proxy."""

    def message_arrived(self, head: bytes) -> None:
        lowered = head.lower()
        whole = answer(_number(lowered, _BYTES) or 200)
        after_ms = _number(lowered, _AFTER)
        if after_ms:
            asyncio.get_running_loop().call_later(after_ms / 1000, self.transport.write, whole)
        else:
            self.transport.write(whole)


def _number(head: bytes, field: bytes) -> int:
    found = head.find(field)
    return int(head[found + len(field) :].split(b"\r\n", 1)[0]) if found > 0 else 0


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Service, "127.0.0.1", int(sys.argv[1]), backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
