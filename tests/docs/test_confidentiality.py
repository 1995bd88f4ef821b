"""The page about confidentiality: its rotation is done as it is written, and its settings are the program's."""

from __future__ import annotations

import asyncio
import re
import shlex
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import main
from tests.support.house import config_text, house, neighbour, sqlite_store, status_of

TEXT = (Path(__file__).parents[2] / "docs" / "configure" / "confidentiality.md").read_text()
KEYS = {name: f"{number}f" * 32 for number, name in enumerate(sorted(set(re.findall(r"\$\{(\w+)\}", TEXT))))}
BLOCKS = re.findall(r"^( *)```(yaml|console)\n(.*?)^ *```$", TEXT, re.DOTALL | re.MULTILINE)
STEPS = [(kind, re.sub(f"^{indent}", "", block, flags=re.MULTILINE)) for indent, kind, block in BLOCKS if indent]
SETTINGS = [yaml.safe_load(block) for _, kind, block in BLOCKS if kind == "yaml"]


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)


async def test_the_rotation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Step by step, beside a gateway that serves as it was told before: every command succeeds, and at the end the old
    key is needed for nothing."""
    store, file = sqlite_store(tmp_path), tmp_path / "gateway.yaml"
    async with house(store, tmp_path, **_filled(SETTINGS[0])) as home, AsyncExitStack() as stack:
        serving, upstream = home, home.upstream
        await home.send("k1")
        for kind, step in STEPS:
            if kind == "yaml":
                await serving.gateway.stop()
                changes = _filled(yaml.safe_load(step))
                file.write_text(config_text(upstream.url, store, tmp_path, **changes))
                serving = await stack.enter_async_context(neighbour(store, tmp_path, upstream, **changes))
                assert status_of(await serving.send("k1")) == (200, "replayed")
            else:
                program, *words = shlex.split(step.removeprefix("$ "))
                assert program == "idempotency-gateway"
                assert await asyncio.to_thread(main, [*words, "--config", str(file)]) == 0, capsys.readouterr()
        assert set((await serving.gateway._store.cold.tally()).sealed) == {"2027-11"}


def _filled(shown: dict[str, Any]) -> dict[str, Any]:
    listed = shown["secrets"]["encryption"]
    return {"secrets": {"encryption": [{**each, "key": KEYS[each["key"].strip("${}")]} for each in listed]}}
