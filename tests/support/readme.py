"""The parts of the README that are made of the program's own tables. `python -m tests.support.readme` puts them in.

A part stands between `<!-- table: NAME -->` and `<!-- end -->`; what is around it is written by hand and left alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gateway.core.lifecycle import ROWS, TABLE, Fence, Row
from gateway.core.message import Headers
from gateway.core.operation import State
from gateway.core.outcome import Meaning, Preset, StatusPolicy, meaning_of
from gateway.core.verdict import RULES, Verdict
from gateway.observe.metrics import Metrics
from gateway.protect.problem import ANSWERED, CASES, DOUBTS

README = Path(__file__).parents[2] / "README.md"
_PART = re.compile(r"(?P<begin><!-- table: (?P<name>[a-z]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
_RETRY_AFTER: Headers = ((b"Retry-After", b"1"),)


def picture() -> str:
    """The life of an operation. An arrow with several events stands for several rows of the table."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for row in TABLE:
        for state in row.states:
            if state is not row.next:
                arrows.setdefault((state, row.next), []).append(row.event.value)
    lines = [f"    {state} --> {next_}: {', '.join(events)}" for (state, next_), events in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {State.ABSENT}", *lines, "```"])


def lifecycle() -> str:
    """Every row of the table of the life of an operation."""
    says = {
        Fence.NONE: "anybody",
        Fence.HOLDER: "the holder",
        Fence.READ_TOKEN: "who read the record as it is",
        Fence.OPERATOR: "an operator",
        Fence.CLOCK: "the store's clock",
    }
    assert len(ROWS) == sum(len(row.states) for row in TABLE)
    return _table(
        ("state", "event", "next", "said by", "meaning"),
        [(_names(row.states), f"`{row.event}`", f"`{row.next}`", says[row.fence], _meaning(row)) for row in TABLE],
    )


def _meaning(row: Row) -> str:
    limits = []
    if row.same_fingerprint:
        limits.append("only for the same request")
    if row.refused_under_doubt:
        limits.append("never where an earlier attempt is in doubt")
    return f"{row.meaning}{'; ' if limits else ''}{', '.join(limits)}"


def verdicts() -> str:
    """The rules in their order."""
    return _table(
        ("", "when", "the caller gets", "verdict"),
        [(str(rule.number), rule.when, rule.reply, _names(rule.verdicts) or "(none)") for rule in RULES],
    )


def words() -> str:
    """What a caller should do on each verdict that makes an answer of the gateway's own."""
    rows = []
    for verdict in Verdict:
        if verdict in ANSWERED:
            continue
        for recovery, case in DOUBTS.items() if verdict is Verdict.IN_DOUBT else ((None, CASES[verdict]),):
            name = f"`{verdict}`" if recovery is None else f"`{verdict}` (`{recovery.__name__.lower()}`)"
            again = "yes" if case.retryable else "no"
            rows.append((name, str(case.status), again, _without_blanks(case.detail)))
    return _table(("verdict", "status", "same key again?", "what the answer says"), rows)


def _without_blanks(detail: str) -> str:
    """A detail with its gaps shown as gaps."""
    return re.sub(r"\{[a-z]+\}", "…", detail)


def outcomes() -> str:
    """What each preset takes a status for, found by asking it about every status."""
    header = ("preset", "final: recorded and replayed", "retryable: had no effect", "in doubt: may have had one")
    return _table(header, [(f"`{preset}`", *_selections(preset)) for preset in Preset])


def _selections(preset: Preset) -> list[str]:
    policy = StatusPolicy(preset)

    def meaning(status: int, headers: Headers = ()) -> Meaning:
        return meaning_of(status, headers, policy, carries_doubt=False)

    said: dict[Meaning, list[str]] = {each: [] for each in Meaning}
    for category in (2, 3, 4, 5):
        statuses = range(category * 100, category * 100 + 100)
        found = [meaning(status) for status in statuses]
        usual = max(Meaning, key=found.count)
        exceptions = [status for status in statuses if meaning(status) is not usual]
        said[usual].append(f"{'other ' if exceptions else ''}{category}xx")
        for status in exceptions:
            said[meaning(status)].append(str(status))
        delayed = {meaning(status, _RETRY_AFTER) for status in statuses}
        if delayed != set(found):
            assert len(delayed) == 1, "Retry-After must mean one thing for a whole class"
            said[delayed.pop()].append(f"any {category}xx with `Retry-After`")
    return [" ".join(said[each]) or "–" for each in Meaning]


def metrics() -> str:
    """Every metric with its labels."""
    families = Metrics([], has_fast_tier=True, version="")._families.values()
    rows = [(f"`{each.name}`", _names(each.label_names), each.text) for each in families]
    return _table(("metric", "labels", "what it says"), rows)


def _names(items: Sequence[str]) -> str:
    return ", ".join(f"`{item}`" for item in items)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


PARTS: Mapping[str, Callable[[], str]] = {
    "picture": picture,
    "lifecycle": lifecycle,
    "verdicts": verdicts,
    "words": words,
    "outcomes": outcomes,
    "metrics": metrics,
}


def filled(text: str) -> str:
    """The text with every part as the program has it now. Raises ValueError when one is missing or unknown."""
    names = [found["name"] for found in _PART.finditer(text)]
    if sorted(names) != sorted(PARTS):
        raise ValueError(f"expected the parts {sorted(PARTS)}, found {sorted(names)}")
    return _PART.sub(lambda found: f"{found['begin']}{PARTS[found['name']]()}\n{found['end']}", text)


if __name__ == "__main__":
    README.write_text(filled(README.read_text()))
    sys.stdout.write(f"{README.name} is up to date\n")
