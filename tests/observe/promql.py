"""Enough of PromQL to know what an expression asks for.

Which series it selects and how it treats them: under which functions, with which window, grouped by which labels. What
it does not know, it refuses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

AGGREGATIONS = frozenset(("sum", "max", "min", "count", "avg"))
OF_COUNTERS = frozenset(("rate", "increase"))
_OF_ANYTHING = frozenset(("absent",))
_BINARY = frozenset((">", "<", ">=", "<=", "==", "!=", "+", "-", "*", "/", "and", "or", "unless"))
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhd])?"
    r"|(?P<string>\"[^\"\\]*\")|(?P<sign>>=|<=|==|!=|=~|!~|[-+*/<>=(){}\[\],]))"
)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class PromqlError(ValueError):
    """Not an expression, or one of more than is known here."""


@dataclass
class Selector:
    """One selection of series, and what becomes of it on the way out: functions from the inside, then groupings."""

    metric: str
    matchers: dict[str, str] = field(default_factory=dict)
    window_seconds: int = 0
    functions: list[str] = field(default_factory=list)
    groupings: list[frozenset[str]] = field(default_factory=list)


def seconds(text: str) -> int:
    """A duration such as `5m`."""
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None:
        raise PromqlError(f"not a duration: {text}")
    return int(found[1]) * _SECONDS[found[2]]


def selectors(expression: str) -> list[Selector]:
    """Every selection in the expression. Raises `PromqlError`."""
    parser = _Parser(_tokens(expression))
    found = parser.expression()
    if parser.next is not None:
        raise PromqlError(f"unexpected {parser.next!r}")
    return found


def _tokens(expression: str) -> list[str]:
    tokens, position, text = [], 0, expression.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise PromqlError(f"not understood: {text[position:]!r}")
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


class _Parser:
    """One method for each form; each returns the selectors within it."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens

    @property
    def next(self) -> str | None:
        return self._tokens[0] if self._tokens else None

    def expression(self) -> list[Selector]:
        found = self._operand()
        while self.next in _BINARY:
            self._take()
            found += self._operand()
        return found

    def _operand(self) -> list[Selector]:
        token = self._take()
        if token == "(":
            found = self.expression()
            self._take(")")
            return found
        if re.fullmatch(r"\d+(\.\d+)?", token):
            return []
        if token in AGGREGATIONS:
            return self._aggregation()
        if token in OF_COUNTERS | _OF_ANYTHING:
            self._take("(")
            found = self.expression()
            self._take(")")
            for selector in found:
                selector.functions.append(token)
            return found
        if re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", token) and self.next != "(":
            return [self._selector(token)]
        raise PromqlError(f"not understood: {token!r} before {self.next!r}")

    def _aggregation(self) -> list[Selector]:
        labels: set[str] = set()
        if self.next == "by":
            self._take()
            self._take("(")
            while self.next != ")":
                labels.add(self._take())
                if self.next == ",":
                    self._take()
            self._take(")")
        self._take("(")
        found = self.expression()
        self._take(")")
        for selector in found:
            selector.groupings.append(frozenset(labels))
        return found

    def _selector(self, metric: str) -> Selector:
        selector = Selector(metric)
        if self.next == "{":
            self._take()
            while self.next != "}":
                label = self._take()
                self._take("=")
                selector.matchers[label] = self._take().strip('"')
                if self.next == ",":
                    self._take()
            self._take("}")
        if self.next == "[":
            self._take()
            selector.window_seconds = seconds(self._take())
            self._take("]")
        if self.next == "offset":
            self._take()
            seconds(self._take())
        return selector

    def _take(self, expected: str | None = None) -> str:
        if not self._tokens:
            raise PromqlError("the expression ends too early")
        token = self._tokens.pop(0)
        if expected is not None and token != expected:
            raise PromqlError(f"expected {expected!r}, not {token!r}")
        return token
