"""The parts of the documentation that are made of the program's own tables. `make docs` puts them in."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gateway.admin.access import READ, RELOAD
from gateway.admin.actions import CHANGES, LOOKS, FindAsked
from gateway.config import Config
from gateway.config.effective import descriptions
from gateway.config.leaf import Leaf
from gateway.core.lifecycle import ROWS, TABLE, Fence, Row
from gateway.core.message import Headers, IndexedHeaders
from gateway.core.operation import State
from gateway.core.outcome import SAID, Meaning, Preset, StatusPolicy, meaning_of
from gateway.core.verdict import RULES, Verdict
from gateway.observe.facts import RequestAnswered
from gateway.observe.metrics import Metrics
from gateway.options import parser
from gateway.protect.reply import BY_STATUS, CASES, DOUBTS

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = (README, *sorted(DOCS.rglob("*.md")))
_PART = re.compile(r"(?P<begin><!-- generated: (?P<name>[a-z-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
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
    limits = ["only for the same request"] * row.same_fingerprint
    limits += ["never where an earlier attempt is in doubt"] * row.refused_under_doubt
    return f"{row.meaning}{'; ' if limits else ''}{', '.join(limits)}"


def verdicts() -> str:
    return _table(
        ("", "when", "the caller gets", "verdict"),
        [(str(rule.number), rule.when, rule.reply, _names(rule.verdicts) or "(none)") for rule in RULES],
    )


def problems() -> str:
    """What a caller should do on each verdict that makes an answer of the gateway's own."""
    rows = []
    for code, usual in CASES.items():
        cases = [(f"`{code}`", usual)]
        if code is Verdict.IN_DOUBT:
            cases = [(f"`{code}` (`{recovery.__name__.lower()}`)", case) for recovery, case in DOUBTS.items()]
        cases += [(f"`{code}`", case) for (each, _), case in BY_STATUS.items() if each is code]
        for name, case in cases:
            again = "yes" if isinstance(case.retry, int) else "as you like" if case.retry == "open" else "no"
            # A detail with its gaps shown as gaps.
            rows.append((name, str(case.status), again, re.sub(r"\{[a-z]+\}", "…", case.detail)))
    return _table(("code", "status", "same key again?", "what the response says"), rows)


def outcomes() -> str:
    """What each preset takes a status for, found by asking it about every status."""
    header = ("preset", "final: recorded and replayed", "retryable: had no effect", "in doubt: may have had one")
    return _table(header, [(f"`{preset}`", *_selections(preset)) for preset in Preset])


def said() -> str:
    """What a gateway's verdicts say to a gateway in front of it."""
    rows = [
        (f"`{meaning.replace('_', '-')}`", " ".join(f"`{verdict}`" for verdict in Verdict if SAID[verdict] is meaning))
        for meaning in Meaning
    ]
    by_status = " ".join(f"`{verdict}`" for verdict in Verdict if SAID[verdict] is None)
    return _table(("the outcome is", "where the inner gateway says"), [*rows, ("by the status", by_status)])


def _selections(preset: Preset) -> list[str]:
    policy = StatusPolicy(preset)

    def meaning(status: int, headers: Headers = ()) -> Meaning:
        return meaning_of(status, IndexedHeaders(headers).by_name, policy, carries_doubt=False)

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
    families = Metrics([], has_fast_tier=True, version="")._families.values()
    rows = [(f"`{each.name}`", _names(each.label_names), each.text) for each in families]
    return _table(("metric", "labels", "what it says"), rows)


# -- configuration -----------------------------------------------------------------------------------------------------


def settings() -> str:
    """Every setting, a table for each section of the file."""
    parts: list[str] = []
    titles: dict[str, str] = {}
    paths = [path for path, _ in sections()]
    for path, model in sections():
        rows = []
        for name, field in model.model_fields.items():
            default = f"`{text}`" if (text := _default(field)) else "**required**" if field.is_required() else "–"
            about = " ".join(descriptions(model).get(field.alias or name, "").split())
            rows.append((f"`{field.alias or name}`", _kind_of(annotated(field)), default, about))
        form = f", with `{_form(model)}`" if paths.count(path) > 1 else ""
        title = f"`{path}`{form}" if path else "The file"
        about = " ".join((model.__doc__ or "").split())
        table = _table(("setting", "type and bounds", "default", ""), rows)
        parts.append(f"## {title}\n\n{about}\n\n{table}")
        if path not in titles and path.count(".") < 2:
            titles[path] = f"[{path or 'the file'}](#{anchor(title)})"
    return "\n\n".join([" · ".join(titles.values()), *parts])


def anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


def _form(model: type[BaseModel]) -> str:
    """The setting that tells a form of a section from the others."""
    if (kind := model.model_fields.get("kind")) is not None:
        return f"kind: {_default(kind) or get_args(kind.annotation)[0]}"
    required = [name for name, field in model.model_fields.items() if field.is_required()]
    first = next(name for name in required if name not in ("required", "format"))
    return model.model_fields[first].alias or first


def sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Each section of the file with its path, in the order of the models.

    A section that occurs in several places comes once.
    """
    waiting: list[tuple[str, type[BaseModel]]] = [("", Config)]
    seen: set[type[BaseModel]] = set()
    while waiting:
        path, model = waiting.pop(0)
        if model in seen:
            continue
        seen.add(model)
        yield path, model
        waiting[:0] = [
            (f"{path}.{field.alias or name}{suffix}".removeprefix("."), found)
            for name, field in model.model_fields.items()
            for suffix, found in models_in(annotated(field))
        ]


def annotated(field: FieldInfo) -> Any:
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def models_in(kind: Any, suffix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections within a type, each with what its path has more than that of the setting."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield suffix, kind
    elif get_origin(kind) is tuple:
        yield from models_in(get_args(kind)[0], f"{suffix}[]")
    elif get_origin(kind) is Annotated:
        yield from models_in(get_args(kind)[0], suffix)
    elif not isinstance(kind, type):
        for each in get_args(kind):
            yield from models_in(each, suffix)


def _kind_of(kind: Any) -> str:
    """The type of a setting with its bounds, in words."""
    if get_origin(kind) is Annotated:
        inner, *metadata = get_args(kind)
        for each in metadata:
            if isinstance(each, Leaf):
                return _leaf(each)
        unpacked = [one for each in metadata for one in (each.metadata if isinstance(each, FieldInfo) else (each,))]
        most = next((most for each in unpacked if (most := getattr(each, "max_length", None))), None)
        return _kind_of(inner) + (f", at most {most}" if most is not None and get_origin(inner) is tuple else "")
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _names([str(each) for each in parts])
    if origin is tuple:
        return f"list of {_kind_of(parts[0])}"
    if origin is dict:
        return "mapping of names to values"
    if origin is not None:
        return " or ".join(dict.fromkeys(_kind_of(each) for each in parts if each is not type(None)))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "mapping"
    return {SecretStr: "secret", SecretBytes: "secret", int: "whole number", bool: "true or false"}.get(kind, "text")


def _leaf(leaf: Leaf) -> str:
    expected = leaf.expected.removeprefix("a ").removeprefix("an ")
    if leaf.bounds is not None:
        kind = "" if expected.startswith("whole number") else f"{expected.partition(' ')[0]}, "
        return f"{kind}{leaf.bounds[0]} to {leaf.bounds[1]}" + (", or `auto`" if "auto" in expected else "")
    return "`true`, `false`" if expected == "true or false" else expected


def _default(field: FieldInfo) -> str:
    match field.default:
        case None:
            return ""
        case bool() as flag:
            return str(flag).lower()
        case tuple() | list() as items:
            return f"[{', '.join(map(str, items))}]"
        case dict():
            return "{}"
        case value:
            return "" if value is PydanticUndefined else str(value)


# -- command line ------------------------------------------------------------------------------------------------------


def commands() -> str:
    (group,) = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    helps = {action.dest: action.help or "" for action in group._choices_actions}
    parts = []
    for name, command in group.choices.items():
        about = command.description or f"{helps[name][:1].upper()}{helps[name][1:]}."
        rows = [
            (_usage(action), (action.help or "") % {"default": action.default})
            for action in command._actions
            if not isinstance(action, argparse._HelpAction) and action.help is not argparse.SUPPRESS
        ]
        parts.append(f"## `{name}`\n\n{_escaped(about)}\n\n{_table(('option', ''), rows)}")
    return "\n\n".join(parts)


def _escaped(text: str) -> str:
    return re.sub(r"\b[A-Z]+_[A-Z]+(?:@[A-Z]+)?\b", lambda found: f"`{found[0]}`", text)


def _usage(action: argparse.Action) -> str:
    """An option as it is written."""
    choices = [str(each) for each in action.choices or ()]
    value = str(action.metavar or action.dest.upper())
    if choices:
        value = "|".join(choices) if len(choices) < 4 else action.dest.upper()
    if action.nargs == 0:
        value = ""
    option = f"`{' '.join(filter(None, (*action.option_strings[:1], value)))}`"
    return option + (f": {_names(choices)}" if action.option_strings and len(choices) >= 4 else "")


# -- admin API ---------------------------------------------------------------------------------------------------------


def admin_api() -> str:
    rows = [
        (f"`GET {look.path}`", READ.role or "", [] if look.query is None else list(look.query.model_fields))
        for look in LOOKS
    ]
    rows.append(("`POST /find`", READ.role or "", list(FindAsked.model_fields)))
    rows += [(f"`POST {change.path}`", change.action.role or "", list(change.asked.model_fields)) for change in CHANGES]
    rows.append(("`POST /config/reload`", RELOAD.role or "", []))
    return _table(("request", "role", "query or body"), [(*row, _names(names)) for *row, names in rows])


# -- logs --------------------------------------------------------------------------------------------------------------

_LOG_FIELDS = {
    "method": "the method of the request",
    "route": "the name of the route",
    "status": "what the caller got",
    "verdict": "the verdict, as in `Idempotency-Status`",
    "upstream_status": "what the service responded to this request's own attempt",
    "duration_ms": "from the arrival of the request to the head of the reply",
    "attempt": "how often the operation was claimed so far",
    "operation_id": "the operation; the service got it as `Idempotency-Operation`",
    "why": "why nothing could be sent to the service, or compared with the record",
    "differs": "in what a request under a used key differs from the first one",
    "first_operation": "the operation that a likely duplicate repeats",
    "scope": "the beginning of the digest of the caller's scope, where one of the two above is there",
    "request_id": "`X-Request-Id`, as the caller sent it",
    "trace_id": "the trace id of `traceparent`",
}


def log_fields() -> str:
    ((_, _, make),) = RequestAnswered.lines
    line = make(RequestAnswered("a", Verdict.STORED, 200, 0.1, "POST"))
    names = [*line.detail, *line.fields]
    assert sorted(names) == sorted(_LOG_FIELDS), "describe each field of the line about a request"
    return _table(("field", "what it says"), [(f"`{name}`", _LOG_FIELDS[name]) for name in names])


def _names(items: Sequence[str]) -> str:
    return ", ".join(f"`{item}`" for item in items)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


_MAKERS: tuple[Callable[[], str], ...] = (
    picture, lifecycle, verdicts, problems, outcomes, said, metrics, log_fields, settings, commands, admin_api,
)  # fmt: skip
PARTS: Mapping[str, Callable[[], str]] = {make.__name__.replace("_", "-"): make for make in _MAKERS}


def parts_of(text: str) -> list[str]:
    return [found["name"] for found in _PART.finditer(text)]


def filled(text: str) -> str:
    """A page with every part as the program has it now. Raises KeyError for a part that is unknown."""
    return _PART.sub(lambda found: f"{found['begin']}{PARTS[found['name']]()}\n{found['end']}", text)


if __name__ == "__main__":
    for page in PAGES:
        before = page.read_text("utf-8")
        if (after := filled(before)) != before:
            page.write_text(after, "utf-8")
            sys.stdout.write(f"{page.relative_to(ROOT)} was written anew\n")
