"""Enough of PromQL to know what an expression asks for, and what it says of given series.

Which series it selects and how it treats them: under which functions, with which window, grouped by which labels. What
it does not know, it refuses. `evaluate` gives its value; `increase` and `rate` extend to the whole window without the
limits that Prometheus sets to that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import add, eq, ge, gt, le, lt, mul, ne, sub
from statistics import fmean
from typing import Final

Operator = Callable[[float, float], float]
Aggregation = Callable[[Sequence[float]], float]
AGGREGATIONS: Final[dict[str, Aggregation]] = {"sum": sum, "max": max, "min": min, "count": len, "avg": fmean}
OF_COUNTERS: Final = frozenset(("rate", "increase"))
_OF_ANYTHING: Final = frozenset(("absent", "histogram_quantile", "time"))
_SETS: Final = frozenset(("and", "or", "unless"))
_COMPARISONS: Final[dict[str, Operator]] = {"==": eq, "!=": ne, "<": lt, ">": gt, "<=": le, ">=": ge}
_ARITHMETIC: Final[dict[str, Operator]] = {"+": add, "-": sub, "*": mul, "/": lambda a, b: a / b if b else float("nan")}
# From the loosest to the tightest.
_LEVELS: Final = (("or",), ("and", "unless"), tuple(_COMPARISONS), ("+", "-"), ("*", "/"))
_TOKEN: Final = re.compile(
    r"\s*(?:[a-zA-Z_:][a-zA-Z0-9_:]*|\d+(?:\.\d+)?[smhd]?|\"[^\"\\]*\"|>=|<=|==|!=|=~|!~|[-+*/<>=(){}\[\],])"
)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# How old a sample may be and still be the value of its series.
_LOOKBACK_SECONDS: Final = 300


class PromqlError(ValueError):
    """Not an expression, or one of more than is known here."""


@dataclass
class Selector:
    """One selection of series, and what becomes of it on the way out: functions from the inside, then groupings.
    `matchers` has the labels that must have one value, `patterns` those that must match a whole regular expression."""

    metric: str
    matchers: dict[str, str] = field(default_factory=dict)
    patterns: dict[str, str] = field(default_factory=dict)
    window_seconds: int = 0
    offset_seconds: int = 0
    functions: list[str] = field(default_factory=list)
    groupings: list[frozenset[str]] = field(default_factory=list)

    def selects(self, each: History) -> bool:
        """Whether it selects this series."""
        return (
            each.metric == self.metric
            and all(each.labels.get(label, "") == value for label, value in self.matchers.items())
            and all(re.fullmatch(pattern, each.labels.get(label, "")) for label, pattern in self.patterns.items())
        )


@dataclass
class Call:
    """An operator, a function or, with `labels`, an aggregation, of its arguments."""

    name: str
    arguments: list[Node]
    labels: frozenset[str] | None = None


Node = float | Selector | Call


def seconds(text: str) -> int:
    """A duration such as `5m`."""
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None:
        raise PromqlError(f"not a duration: {text}")
    return int(found[1]) * _SECONDS[found[2]]


def parse(expression: str) -> Node:
    """The expression as a tree. Raises `PromqlError`."""
    parser = _Parser(expression)
    found = parser.expression()
    if parser.next is not None:
        raise PromqlError(f"unexpected {parser.next!r}")
    return found


def selectors(expression: str) -> list[Selector]:
    """Every selection in the expression. Raises `PromqlError`."""
    return list(_selectors(parse(expression)))


def _selectors(node: Node) -> Iterator[Selector]:
    match node:
        case Selector():
            yield node
        case Call(name, arguments, labels):
            for selector in (each for argument in arguments for each in _selectors(argument)):
                if labels is not None:
                    selector.groupings.append(labels)
                elif name in OF_COUNTERS | _OF_ANYTHING:
                    selector.functions.append(name)
                yield selector


class _Parser:
    """One method for each form."""

    def __init__(self, expression: str) -> None:
        self._tokens: list[str] = [each.strip() for each in _TOKEN.findall(expression)]
        if _TOKEN.sub("", expression).strip():
            raise PromqlError(f"not understood: {expression!r}")

    @property
    def next(self) -> str | None:
        return self._tokens[0] if self._tokens else None

    def expression(self, level: int = 0) -> Node:
        if level == len(_LEVELS):
            return self._operand()
        found = self.expression(level + 1)
        while self.next in _LEVELS[level]:
            found = Call(self._take(), [found, self.expression(level + 1)])
        return found

    def _operand(self) -> Node:
        token = self._take()
        if token == "(":
            found = self.expression()
            self._take(")")
            return found
        if re.fullmatch(r"\d+(\.\d+)?", token):
            return float(token)
        if token in AGGREGATIONS:
            labels = frozenset[str]()
            if self.next == "by":
                self._take()
                labels = frozenset([self._take() for _ in self._each("(", ")")])
            return Call(token, self._arguments(), labels)
        if token in OF_COUNTERS | _OF_ANYTHING:
            return Call(token, self._arguments())
        if re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", token) and self.next != "(":
            return self._selector(token)
        raise PromqlError(f"not understood: {token!r} before {self.next!r}")

    def _each(self, begin: str, end: str) -> Iterator[None]:
        """For each item between these signs, with commas between them."""
        self._take(begin)
        while self.next != end:
            yield
            if self.next == ",":
                self._take()
        self._take(end)

    def _arguments(self) -> list[Node]:
        return [self.expression() for _ in self._each("(", ")")]

    def _selector(self, metric: str) -> Selector:
        selector = Selector(metric)
        for _ in self._each("{", "}") if self.next == "{" else ():
            label = self._take()
            sign = "=~" if self.next == "=~" else "="
            self._take(sign)
            value = self._take()
            if not value.startswith('"'):
                raise PromqlError(f"not a string: {value!r}")
            (selector.patterns if sign == "=~" else selector.matchers)[label] = value.strip('"')
        if self.next == "[":
            self._take()
            selector.window_seconds = seconds(self._take())
            self._take("]")
        if self.next == "offset":
            self._take()
            selector.offset_seconds = seconds(self._take())
        return selector

    def _take(self, expected: str | None = None) -> str:
        if not self._tokens:
            raise PromqlError("the expression ends too early")
        token = self._tokens.pop(0)
        if expected is not None and token != expected:
            raise PromqlError(f"expected {expected!r}, not {token!r}")
        return token


# -- values -----------------------------------------------------------------------------------------------------------


Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]


@dataclass
class History:
    """A series: its samples by their time in seconds, in order."""

    metric: str
    labels: dict[str, str]
    samples: dict[int, float]

    @property
    def key(self) -> Labels:
        return frozenset(self.labels.items())


def history(series: str, values: str, interval_seconds: int) -> History:
    """A series as `promtool test rules` writes it: `name{label="x"}` and `0+1x10 5 _`."""
    selector = parse(series)
    if not isinstance(selector, Selector):
        raise PromqlError(f"not a series: {series}")
    found: list[float | None] = []
    for item in values.split():
        match = re.fullmatch(r"(?:(_)|(-?[\d.]+)([+-][\d.]+)?)(?:x(\d+))?", item)
        if match is None:
            raise PromqlError(f"not understood: {item!r}")
        gap, first, step, count = match.groups()
        times = range(int(count or 0) + (0 if gap and count else 1))
        found += [None if gap else float(first) + float(step or 0) * index for index in times]
    samples = {index * interval_seconds: value for index, value in enumerate(found) if value is not None}
    return History(selector.metric, selector.matchers, samples)


def evaluate(node: Node, histories: Sequence[History], now: int) -> Vector | float:
    """The value at this time in seconds. Raises `PromqlError`."""
    match node:
        case float():
            return node
        case Selector():
            then = now - node.offset_seconds
            samples = {each.key: each.samples for each in histories if node.selects(each)}
            latest = {
                labels: [value for time, value in found.items() if then - _LOOKBACK_SECONDS < time <= then]
                for labels, found in samples.items()
            }
            return {labels: values[-1] for labels, values in latest.items() if values}
        case Call("time", []):
            return float(now)
        case Call(name, [Selector() as selector]) if name in OF_COUNTERS:
            return _increases(selector, histories, now, per_second=name == "rate")
        case Call("absent", [Selector() as selector]):
            is_there = evaluate(selector, histories, now)
            return {} if is_there else {frozenset(selector.matchers.items()): 1.0}
        case Call(name, [argument], frozenset() as labels):
            groups: dict[Labels, list[float]] = {}
            for each, value in _vector(evaluate(argument, histories, now)).items():
                groups.setdefault(frozenset(pair for pair in each if pair[0] in labels), []).append(value)
            return {group: AGGREGATIONS[name](values) for group, values in groups.items()}
        case Call(sign, [left, right]) if sign in _SETS:
            return _united(sign, *(_vector(evaluate(each, histories, now)) for each in (left, right)))
        case Call(sign, [left, right]) if sign in _COMPARISONS or sign in _ARITHMETIC:
            return _combined(sign, *(evaluate(each, histories, now) for each in (left, right)))
    raise PromqlError(f"cannot be evaluated: {node}")


def fires(expression: str, for_seconds: int, histories: Sequence[History], at: int, step: int) -> bool:
    """Whether an alert fires at this time in seconds, evaluated each `step` seconds."""
    node = parse(expression)
    since: dict[Labels, int] = {}
    for now in range(0, at + 1, step):
        found = _vector(evaluate(node, histories, now))
        since = {labels: since.get(labels, now) for labels in found}
    return any(at - began >= for_seconds for began in since.values())


def _increases(selector: Selector, histories: Sequence[History], now: int, *, per_second: bool) -> Vector:
    end = now - selector.offset_seconds
    found: Vector = {}
    for each in histories:
        points = [(time, v) for time, v in each.samples.items() if end - selector.window_seconds <= time <= end]
        if selector.selects(each) and len(points) > 1:
            # A counter that fell began anew.
            grown = sum(b - a if b >= a else b for (_, a), (_, b) in pairwise(points))
            rate = grown / (points[-1][0] - points[0][0])
            found[each.key] = rate if per_second else rate * selector.window_seconds
    return found


def _united(sign: str, left: Vector, right: Vector) -> Vector:
    if sign == "or":
        return {**right, **left}
    return {labels: value for labels, value in left.items() if (labels in right) == (sign == "and")}


def _combined(sign: str, left: Vector | float, right: Vector | float) -> Vector | float:
    if isinstance(left, float) and isinstance(right, float):
        if sign in _COMPARISONS:
            raise PromqlError("a comparison of two numbers")
        return _ARITHMETIC[sign](left, right)
    keys = left.keys() if isinstance(left, dict) else _vector(right).keys()
    pairs = {
        labels: tuple(each[labels] if isinstance(each, dict) else each for each in (left, right))
        for labels in keys
        if not isinstance(right, dict) or labels in right
    }
    if sign in _COMPARISONS:
        kept = 0 if isinstance(left, dict) else 1
        return {labels: pair[kept] for labels, pair in pairs.items() if _COMPARISONS[sign](*pair)}
    return {labels: _ARITHMETIC[sign](*pair) for labels, pair in pairs.items()}


def _vector(value: Vector | float) -> Vector:
    if isinstance(value, float):
        raise PromqlError("a number where series are expected")
    return value
