"""The guide to `explain`: what it shows of the program is what the program prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gateway import PROGRAM
from gateway.cli import main

GUIDE = (Path(__file__).parents[2] / "docs" / "explain.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def test_what_is_shown_is_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = blocks("yaml")
    Path("gateway.yaml").write_text(text)
    shown = blocks("console")
    assert len(shown) == 2
    for block in shown:
        command, _, output = block.partition("\n")
        words = shlex.split(command)
        assert words[:2] == ["$", PROGRAM]
        assert main(words[2:]) == 0
        assert capsys.readouterr().out == output


def test_every_option_is_explained() -> None:
    options = {"--file", "--peer", "--certificate", "--response", "--store", "--show", "--format"}
    assert options <= set(re.findall(r"^\| `(--[a-z]+)", GUIDE, re.MULTILINE))
    assert len(GUIDE.splitlines()) <= 150
