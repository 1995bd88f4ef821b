"""What every test gets: real servers on request, and the rule that nothing is skipped and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.store.postgres.store import migrate
from tests.support import nursery, programs
from tests.support.postgres import MigratedDatabases, Postgres, PostgresInstallation, PostgresServer, workspace
from tests.support.processes import descendants
from tests.support.redis import GATEWAY_USER, Redis, RedisServer

_SKIPPED = "skipped or expected to fail: a test that does not judge the program is a failure here"
_numbers = itertools.count(1)
# For each of setup, test and teardown. No test needs this long; the run is ended where this does not help.
PATIENCE_SECONDS = float(os.environ.get("GATEWAY_TEST_PATIENCE", "100"))


@pytest.fixture(scope="session")
def server_workspace() -> Iterator[Path]:
    """A directory for the servers' files, reachable by the users they run as."""
    with workspace("gateway-tests") as directory:
        yield directory


@pytest.fixture(scope="session")
def postgres_installation(server_workspace: Path) -> PostgresInstallation:
    return PostgresInstallation(server_workspace / "postgres")


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """One Postgres for the whole run, never stopped by a test: the one in the environment, else our own."""
    if url := os.environ.get("GATEWAY_TEST_POSTGRES"):
        yield Postgres(url)
        return
    directory: Path = request.getfixturevalue("server_workspace")
    with PostgresServer(request.getfixturevalue("postgres_installation"), directory / "pg").running() as server:
        yield server


@pytest.fixture
async def postgres_url(postgres_server: Postgres) -> AsyncIterator[str]:
    """A database of this test alone, with nothing in it."""
    url = await postgres_server.new_database()
    try:
        yield url
    finally:
        await postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def migrated_databases(postgres_server: Postgres) -> Iterator[MigratedDatabases]:
    databases = MigratedDatabases(postgres_server, migrate)
    try:
        yield databases
    finally:
        asyncio.run(databases.drop())


@pytest.fixture
async def migrated_url(migrated_databases: MigratedDatabases) -> AsyncIterator[str]:
    """A database of this test alone with the gateway's tables, which are empty."""
    url = await migrated_databases.take()
    try:
        yield url
    finally:
        await migrated_databases.give_back(url)


@pytest.fixture
def own_postgres(postgres_installation: PostgresInstallation, server_workspace: Path) -> Iterator[PostgresServer]:
    """A started server of this test alone, to be crashed, frozen and started again."""
    with PostgresServer(postgres_installation, server_workspace / f"pg-{next(_numbers)}").running() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> Iterator[Redis]:
    """One Redis for the whole run, never stopped by a test: the one in the environment, else our own."""
    if url := os.environ.get("GATEWAY_TEST_REDIS"):
        yield Redis(url)
        return
    directory: Path = request.getfixturevalue("server_workspace")
    with RedisServer(directory / "redis").running() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: Redis) -> str:
    """An empty database; tests run one after the other, so it is this test's alone."""
    redis_server.flush()
    return redis_server.url


@pytest.fixture(scope="session")
def durable_redis(server_workspace: Path) -> Iterator[RedisServer]:
    """One Redis for the whole run that keeps what it acknowledges, never stopped by a test."""
    place = server_workspace / "durable-redis"
    with RedisServer(place, append_only=True, options=GATEWAY_USER).running() as server:
        yield server


@pytest.fixture
def own_redis(server_workspace: Path) -> Iterator[RedisServer]:
    """A started server of this test alone, to be killed, frozen and started again."""
    with RedisServer(server_workspace / f"redis-{next(_numbers)}").running() as server:
        yield server


@pytest.fixture
async def no_task_is_left() -> AsyncIterator[None]:
    """Every coroutine test ends with the tasks it began with: none but its own."""
    yield
    # One step for tasks that were cancelled or finished in the last one.
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"tasks left behind: {left}"


def pytest_report_header() -> list[str]:
    return programs.described()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the modules of the tests compiled also where nothing may be written beside them.

    To compile them, with their assertions rewritten, is most of what collecting takes.
    """
    cache = getattr(config, "cache", None)
    if sys.dont_write_bytecode and cache is not None:
        sys.pycache_prefix = str(cache.mkdir("bytecode"))
        sys.dont_write_bytecode = False


_LEFT_TO_PROOF = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also what is left to `make proof`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the check first, so that it is torn down after everything else that the test used."""
    if not config.getoption("full"):
        # What runs on both event loops is run on the one that the product uses.
        short = [item for item in items if item.get_closest_marker("full") is None and "[asyncio" not in item.name]
        config.stash[_LEFT_TO_PROOF] = len(items) - len(short)
        items[:] = short
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.function):
            item.fixturenames.insert(0, "no_task_is_left")


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    number = config.stash.get(_LEFT_TO_PROOF, 0)
    return f"{number} long cases are left to `make proof`" if number else ""


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the collector of garbage need not look at it again and again."""
    gc.freeze()


class _Hung(BaseException):
    """Raised where a test hangs. Nothing that the test or the product catches: it is to come out."""


@contextmanager
def _timed(item: pytest.Item, what: str) -> Iterator[None]:
    """Let what takes too long fail, by name. Again in a while: it may have been raised where nobody passes it on."""
    text = f"{item.nodeid}: the {what} did not end within {PATIENCE_SECONDS:g} s"
    is_over = False

    def give_up(*_: object) -> None:
        nonlocal is_over
        is_over = True
        loop = asyncio._get_running_loop()
        if isinstance(loop, asyncio.BaseEventLoop | None):
            raise _Hung(text)
        # uvloop keeps what is raised here to itself.
        for task in asyncio.all_tasks(loop):
            loop.call_soon_threadsafe(task.cancel)

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS, min(PATIENCE_SECONDS, 5.0))
    try:
        yield
    except BaseException as error:
        if not is_over:
            raise
        # As a test that failed: the run goes on.
        raise AssertionError(text) from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _time_of(what: str) -> Callable[[pytest.Item], Generator[None, object, object]]:
    @pytest.hookimpl(wrapper=True)
    def timed(item: pytest.Item) -> Generator[None, object, object]:
        with _timed(item, what):
            return (yield)

    return timed


pytest_runtest_setup, pytest_runtest_call, pytest_runtest_teardown = map(_time_of, ("setup", "test", "teardown"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped or hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: {_SKIPPED} ({report.longrepr})"
        vars(report).pop("wasxfail", None)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: {_SKIPPED} ({report.longrepr})"
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """No process outlives the tests that started it."""
    nursery.close()
    if left := descendants(os.getpid()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\nprocesses left behind: {left}")
