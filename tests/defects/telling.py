"""A plugin of pytest that tells, as JSON lines in `--tell-to FILE`, how each test ended and by what."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

PASSED = "passed"
NOTICED = "noticed"
BROKEN = "broken"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tell-to", required=True, help="the file that gets a line for each test")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """`noticed` is an assertion of the test itself; whatever else goes wrong is `broken`. Of what cannot be collected
    nothing is told."""
    report = yield
    if report.failed:
        error = None if call.excinfo is None else call.excinfo.value
        how = NOTICED if report.when == "call" and _is_assertion(error) else BROKEN
        _tell(item.config, item.nodeid, how, f"{report.when}: {type(error).__name__}: {error}")
    elif report.when == "call":
        _tell(item.config, item.nodeid, PASSED, "")
    return report


def _is_assertion(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_is_assertion(each) for each in error.exceptions)
    return isinstance(error, AssertionError | pytest.fail.Exception)


def _tell(config: pytest.Config, test: str, how: str, why: str) -> None:
    with Path(config.getoption("--tell-to")).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"test": test, "how": how, "why": why}) + "\n")
