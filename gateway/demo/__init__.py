"""The gateway on the embedded store, in front of a demo service or the user's own, without any set-up.

It is the real program with a real configuration, in one process with those around it (`world`): a service that charges
cards, a consumer of events, and a caller. It keeps everything in a temporary directory, so each demonstration starts
from nothing, and opens the console on loopback, with a token of its own. `story` has what is sent by itself: traffic
that gives the console something to show, and scenes, in some of which the gateway is a process of its own and killed.

Entered by demo.
Imports app, config, core, http, observe, store.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from gateway import EXIT_FAILED, EXIT_OK
from gateway.app.gateway import Gateway
from gateway.app.life import StartError, run
from gateway.config.leaf import UpstreamUrl
from gateway.core.message import bracketed
from gateway.demo import world as demonstration
from gateway.demo.story import Scenario, Traffic, Triangle, UnexpectedResult
from gateway.demo.world import Caller, CardService, Consumer, Keys
from gateway.http.server import ListenError, listen_fault
from gateway.observe.logs import Logs
from gateway.store.base import end_tasks

_LOOPBACK: Final = "127.0.0.1"
_GATEWAY_PORT: Final = 8080
_ADMIN_PORT: Final = 8082
_SERVICE_PORT: Final = 9000
_REACH_SECONDS: Final = 2.0


def demo(chosen: argparse.Namespace) -> int:
    """Run until SIGINT or SIGTERM, or to the end of a story; returns the exit code. `chosen` are the options of the
    command `demo`; without a port it is the default, and any free one for the story. With another one the console is on
    any free one. Raises `StartError` with what to do, and `ConfigError` when `upstream` is not the URL of a service."""
    host, port = chosen.host, chosen.port
    if chosen.upstream_only:
        return run(_serve_cards(host, _SERVICE_PORT if port is None else port))
    if chosen.triangle:
        return run(_play_corners())
    if chosen.story:
        return run(_play(host, 0 if port is None else port))
    admin_port = _ADMIN_PORT if port is None else 0
    port = _GATEWAY_PORT if port is None else port
    if chosen.upstream is not None:
        return run(_serve_upstream(chosen.upstream, host, port, admin_port))
    return run(_serve(host, port, admin_port, with_traffic=chosen.traffic))


async def _serve(host: str, port: int, admin_port: int, *, with_traffic: bool) -> int:
    with _Stop() as stop:
        # A line for each request would push what is printed here out of sight.
        level = "warning" if with_traffic else "info"
        async with in_front_of_cards(host, port, admin_port, log_level=level) as world:
            gateway = world.gateway
            _print(_WHERE.format(what=_CARDS, **_places(gateway)))
            if not with_traffic:
                _print(_INSTRUCTIONS.format(**_places(gateway)))
                return await _until(stop, gateway)
            _print(_TRAFFIC)
            caller = Caller(*gateway.address)
            sending = asyncio.create_task(Traffic(caller, world.service, world.consumer, world.keys).run())
            try:
                return await _until(stop, gateway, sending)
            finally:
                await end_tasks((sending,))


async def _serve_upstream(upstream: str, host: str, port: int, admin_port: int) -> int:
    with _Stop() as stop:
        places = {"host": host, "port": port, "admin_port": admin_port, "upstream": upstream}
        async with _gateway(demonstration.OF_ANYTHING, Keys.new(), consumer_port=0, **places) as gateway:
            service = gateway.config.upstream.url
            _print(_WHERE.format(what=service, **_places(gateway)))
            _print(_UPSTREAM_INSTRUCTIONS.format(**_places(gateway)))
            if not await _is_reachable(service):
                _print(f"Nothing listens at {service} yet. Requests get 502 until something does.\n")
            return await _until(stop, gateway)


async def _play(host: str, port: int) -> int:
    async with in_front_of_cards(host, port, log_level="error") as world:
        gateway = world.gateway
        _print(f"A service that charges cards is on {world.service_url}. It knows nothing of idempotency.")
        _print(f"The gateway is in front of it, on {_url(gateway.address)}. Its store is empty.")
        return await _told(Scenario(Caller(*gateway.address), _print).play())


async def _play_corners() -> int:
    """Play in a temporary directory. SIGINT and SIGTERM end it, and leave nothing."""
    try:
        temporary = tempfile.TemporaryDirectory(prefix="idempotency-gateway-triangle-")
    except OSError as error:
        raise StartError(f"no temporary directory can be made: {error}. Name a place for it in TMPDIR.") from error
    with _Stop() as stop, temporary as directory:
        scenes = asyncio.create_task(_told(Triangle(Path(directory), _print).play()))
        try:
            await asyncio.wait((stop.requested, scenes), return_when=asyncio.FIRST_COMPLETED)
            if scenes.done():
                return scenes.result()
        finally:
            await end_tasks((scenes,))
    _print("\nStopped. Nothing is left.")
    return EXIT_FAILED


async def _told(scenes: Coroutine[Any, Any, None]) -> int:
    try:
        await scenes
    except (UnexpectedResult, OSError) as error:
        _print(f"\nThis is not what should have happened: {str(error) or 'nothing came in time'}")
        return EXIT_FAILED
    return EXIT_OK


async def _serve_cards(host: str, port: int) -> int:
    with _Stop() as stop:
        try:
            async with CardService(host, port) as service:
                _print(f"A service that charges cards is on {_url((host, service.port))}/v1/charges. Ctrl-C stops it.")
                await stop.requested
        except OSError as error:
            raise _port_error(listen_fault(host, port, error)) from error
    return EXIT_OK


@dataclass(frozen=True, slots=True)
class World:
    """A gateway and those around it."""

    gateway: Gateway
    service: CardService
    service_url: str
    consumer: Consumer
    keys: Keys


@asynccontextmanager
async def in_front_of_cards(host: str, port: int, admin_port: int = 0, log_level: str = "info") -> AsyncIterator[World]:
    """A gateway in front of a service that charges cards, with a consumer of its events."""
    keys = Keys.new()
    async with CardService(_LOOPBACK, 0) as service, Consumer(_LOOPBACK, 0, keys.consumer) as consumer:
        url = f"http://{_LOOPBACK}:{service.port}"
        async with _gateway(
            demonstration.OF_CARDS,
            keys,
            consumer_port=consumer.port,
            host=host,
            port=port,
            admin_port=admin_port,
            upstream=url,
            log_level=log_level,
        ) as gateway:
            yield World(gateway, service, url, consumer, keys)


@asynccontextmanager
async def _gateway(text: str, keys: Keys, **variables: Any) -> AsyncIterator[Gateway]:
    """A gateway that serves inside the context, on an empty store, and stops in order at its end. `variables` are those
    of `world.variables`."""
    with tempfile.TemporaryDirectory(prefix="idempotency-gateway-demo-") as directory:
        config = demonstration.config(text, demonstration.variables(keys, directory=directory, **variables))
        logs = Logs(level=config.log.level, format=config.log.format, requests=config.log.requests)
        try:
            gateway = Gateway(config, (logs,), lambda: logs.dropped)
            try:
                await gateway.start()
            except StartError as error:
                if isinstance(error.__cause__, ListenError):
                    raise _port_error(str(error.__cause__)) from error
                raise
            try:
                yield gateway
            finally:
                await gateway.stop()
        finally:
            logs.close()


def _port_error(text: str) -> StartError:
    return StartError(f"{text}. Listen on another port, for example with --port 8090 (make run PORT=8090).")


class _Stop:
    """`requested` is resolved by the first SIGINT or SIGTERM."""

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self.requested: asyncio.Future[None] = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)

    def _request(self) -> None:
        if not self.requested.done():
            self.requested.set_result(None)


async def _until(stop: _Stop, gateway: Gateway, *sending: asyncio.Task[None]) -> int:
    ends: list[asyncio.Future[Any]] = [stop.requested, gateway.failed, *sending]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in sending:
        if task.done():
            task.result()
    if gateway.failed.done():
        raise gateway.failed.result()
    _print("\nStopped. Everything that the gateway stored is deleted.")
    return EXIT_OK


async def _is_reachable(url: UpstreamUrl) -> bool:
    try:
        async with asyncio.timeout(_REACH_SECONDS):
            _, writer = await asyncio.open_connection(url.host, url.port)
    except OSError:
        return False
    writer.transport.abort()
    return True


def _url(address: tuple[str, int]) -> str:
    host, port = address
    return f"http://{bracketed(host)}:{port}"


def _places(gateway: Gateway) -> dict[str, str]:
    token = gateway.config.admin.token
    return {
        "url": _url(gateway.address),
        "status": _url(gateway.status_address),
        "console": f"{_url(gateway.admin_address)}/ui/",
        "token": "" if token is None else token.get_secret_value(),
    }


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


_CARDS: Final = "a service that charges cards and knows nothing of idempotency"

_WHERE: Final = """\
The gateway is on {url}, in front of {what}.
The console is on {console} - sign in with the token {token}
Probes and metrics are on {status}. Ctrl-C stops it and deletes everything that it stored.
"""

_INSTRUCTIONS: Final = """\
Charge a card, and send the same request again, as often as you like. The card is charged once:

  curl -i {url}/v1/charges -H 'Authorization: Bearer alice' -H 'Idempotency-Key: order-1001' \\
    -d amount=1200 -d currency=eur -d source=tok_visa

The same key with another amount is refused:

  curl -i {url}/v1/charges -H 'Authorization: Bearer alice' -H 'Idempotency-Key: order-1001' \\
    -d amount=9900 -d currency=eur -d source=tok_visa

The service charges, and its connection breaks before it responds. Send it twice. The card is charged once:

  curl -i {url}/v1/charges -H 'Authorization: Bearer alice' -H 'Idempotency-Key: order-1002' \\
    -d amount=1200 -d currency=eur -d source=tok_lost_response

What was really charged, from the service's own ledger:

  curl {url}/v1/charges

The console shows order-1002 in doubt. `curl -i {url}/operations/ID`, with the id that it shows, is
what the service says of it. Paste all of that under "Resolve", and send order-1002 once more.

The service takes what Stripe's libraries send: give them {url} as the address of the API. About a
payment intent whose response is lost (payment_method=tok_lost_response) the gateway asks the service by itself.

Other cards: the service refuses tok_declined, takes three seconds for tok_slow (send it twice at once), and fails after
the charge of tok_error. `make run ARGS=--traffic` sends all of this by itself.
"""

_TRAFFIC: Final = """\
Callers send some five requests a second: charges, repeats, copies at once, another amount under a used key, payouts
that are accepted and delivered later, webhooks, lost responses. Now and then the service is gone for five
seconds, or the consumer of events silent. After a minute the console has something of everything:

  operations in doubt   charges whose response was lost: open one, and end its doubt
  dead letters          payouts whose API key had expired: requeue one, or withdraw it
  the sink              events that wait while their consumer is silent, and catch up
"""

_UPSTREAM_INSTRUCTIONS: Final = """\
A POST or PATCH with an Idempotency-Key is executed once, and repeats of it get the recorded response. Everything else
passes through untouched. Send the same request twice:

  curl -i {url}/YOUR/PATH -H 'Idempotency-Key: try-1' -H 'Content-Type: application/json' -d '{{}}'

This setup is only for a trial: all clients share one key space, so anyone who knows a key can get its response. For
real use, your configuration says whose key it is: see docs/configure/scopes.md.
"""
