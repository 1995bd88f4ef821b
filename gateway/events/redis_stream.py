"""Events to a Redis stream, for consumers that read it by groups.

The reply to XADD is the acknowledgement. It is as durable as that Redis is: with `fsync`, the event is on the disk of
the server when it is acknowledged, where the server can say so (WAITAOF, Redis 7.2). Within a window after the last
attempt, the script adds no event a second time; consumers recognise later repeats by the field `id`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway.config.models import RedisStreamSink as RedisStreamSettings
from gateway.core.outbox import PublishedEvent
from gateway.events.relay import Outgoing, Publication, Sink, reason
from gateway.observe.facts import PublicationResult as Result

TIMEOUT_SECONDS: Final = 5.0
# XADD comes before SET: an error between the two costs a duplicate, in the other order an event. A repeat writes, too:
# WAITAOF waits for what its own connection has written, and the first attempt may have been over another one.
_SCRIPT: Final = """
if redis.call('PEXPIRE', KEYS[2], ARGV[1]) == 1 then return 0 end
local trim = {}
if ARGV[2] ~= '' then trim = {'MAXLEN', '~', ARGV[2]} end
if ARGV[3] ~= '' then
    local now = redis.call('TIME')
    trim = {'MINID', '~', string.format('%.0f', now[1] * 1000 - ARGV[3])}
end
local command = {'XADD', KEYS[1]}
for _, word in ipairs(trim) do command[#command + 1] = word end
command[#command + 1] = '*'
for place = 4, #ARGV do command[#command + 1] = ARGV[place] end
redis.call(unpack(command))
redis.call('SET', KEYS[2], '', 'PX', ARGV[1])
return 1
"""
# Errors of a server that only a person can mend, by their first word.
_PERMANENT: Final = frozenset(("WRONGTYPE", "NOPERM", "NOAUTH", "WRONGPASS"))
# A missing permission inside a script comes without that word: up to Redis 7.0, and later.
_NOT_IN_SCRIPT: Final = ("user executing the script can't", "ACL failure in script")
_FSYNC_MILLISECONDS: Final = 2000


class RedisStreamSink(Sink):
    """Adds each event to the stream, those of a batch by one round trip."""

    # So few that large ones arrive within the deadline, too.
    batch_max = 16
    # A publication takes a connection.
    places = 16

    def __init__(self, settings: RedisStreamSettings, warn: Callable[[str], None]) -> None:
        self._settings = settings
        self._warn = warn
        self._client: Redis | None = None
        self._cannot_fsync = False

    async def open(self) -> None:
        # The driver repeats nothing: a repeat is the relay's decision.
        self._client = Redis.from_url(
            self._settings.url.url.get_secret_value(),
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
        )

    async def publish(self, batch: Sequence[Outgoing]) -> Sequence[Publication]:
        of_all: Publication
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                replies = await self._add(batch)
        except (TimeoutError, exceptions.TimeoutError):
            of_all = Publication(Result.UNKNOWN, f"no reply within {TIMEOUT_SECONDS:g} s")
        except exceptions.AuthenticationError as error:
            of_all = Publication(Result.SUSPENDED, reason(str(error)))
        except (exceptions.RedisError, OSError) as error:
            of_all = Publication(Result.UNKNOWN, reason(str(error)))
        else:
            added, synced = replies[: len(batch)], replies[len(batch) :]
            of_added = self._synced(synced[0] if synced else None)
            return [_refused(each) if isinstance(each, Exception) else of_added for each in added]
        return [of_all] * len(batch)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _add(self, batch: Sequence[Outgoing]) -> list[Any]:
        """The replies to the scripts and perhaps to WAITAOF, each perhaps an error."""
        if self._client is None:
            raise exceptions.ConnectionError("the sink is not open")
        # One connection for all: WAITAOF is about the writes of its own.
        pipeline = self._client.pipeline(transaction=False)
        for event, redeliveries in batch:
            pipeline.eval(*self._script(event, redeliveries))
        if self._settings.fsync and not self._cannot_fsync:
            pipeline.execute_command("WAITAOF", 1, 0, _FSYNC_MILLISECONDS)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

    def _script(self, event: PublishedEvent, redeliveries: int) -> tuple[Any, ...]:
        settings, attributes = self._settings, event.attributes()
        # In a cluster both keys are on one node: they have one hash tag.
        tag = settings.stream if "{" in settings.stream else f"{{{settings.stream}}}"
        seen = f"{tag}:seen:{event.id}" + (f".r{redeliveries}" if redeliveries else "")
        fields: dict[str, str | bytes] = {
            name: attributes[name] for name in ("id", "type", "source", "subject", "time")
        } | {"data": event.data()}
        return (
            _SCRIPT,
            2,
            settings.stream,
            seen,
            str(round(settings.window * 1000)),
            "" if settings.max_length is None else str(settings.max_length),
            "" if settings.max_age is None else str(round(settings.max_age * 1000)),
            *(part for field in fields.items() for part in field),
        )

    def _synced(self, reply: Any) -> Publication:
        match reply:
            case None | [1, *_]:
                return Publication(Result.DELIVERED)
            case exceptions.ResponseError() if "unknown command" in str(reply).lower():
                self._cannot_fsync = True
                self._warn("this Redis cannot say when an event is on its disk: that needs Redis 7.2 (WAITAOF)")
                return Publication(Result.DELIVERED)
            case exceptions.ResponseError():
                return Publication(Result.SUSPENDED, reason(f"fsync: {reply}"))
            case _:
                return Publication(Result.UNKNOWN, "the event was not written to the disk of the server in time")


def _refused(error: Exception) -> Publication:
    why = reason(str(error))
    words = str(error).replace("-", " ").split()
    is_permanent = any(word in _PERMANENT for word in words) or any(text in str(error) for text in _NOT_IN_SCRIPT)
    if is_permanent or isinstance(error, exceptions.AuthorizationError | exceptions.AuthenticationError):
        return Publication(Result.SUSPENDED, why)
    # A script that fails at XADD has added nothing, but the message may be about the connection.
    is_known = isinstance(error, exceptions.ResponseError)
    return Publication(Result.FAILED if is_known else Result.UNKNOWN, why)
