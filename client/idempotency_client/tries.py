"""Intents, and the tries of the request that belongs to one. Nothing here sends or waits."""

import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

from idempotency_client.keys import Keys, New
from idempotency_client.table import Advice, Known, advice, known_after

# They have no effect, and need neither a key nor an intent.
SAFE: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))


class GaveUp(Exception):
    """No answer to an intent. `known` is what is known of its effect, `problem` the last refusal, where there was one.

    Where `may_repeat` is true, go on later, under the same name. Otherwise somebody has to find out first.
    """

    def __init__(self, intent: str, known: Known, problem: Mapping[str, Any], *, may_repeat: bool) -> None:
        self.intent, self.known, self.problem, self.may_repeat = intent, known, problem, may_repeat
        super().__init__(f"{intent}: {known}. {problem.get('detail', '')}".rstrip())


@dataclass(frozen=True, slots=True)
class Patience:
    """Pauses double up to the longest. Whoever is asked by `Retry-After` to wait longer than that gives up."""

    tries: int = 8
    first_seconds: float = 0.5
    longest_seconds: float = 60.0


@dataclass(slots=True)
class _Intent:
    """It has a key once one is needed. What is known lasts over all its requests."""

    name: str
    key: str = ""
    known: Known = Known.IN_DOUBT
    # Held by the one request that is on its way. A thread may share the intent, where somebody copied the context.
    on_its_way: Lock = field(default_factory=Lock)


_current: ContextVar[_Intent] = ContextVar("intent")


@contextmanager
def intent(name: str) -> Iterator[None]:
    """What this thread or task sends in the block is one request, however often, but never twice at once.

    A name ("order-1001") is used once.
    """
    token = _current.set(_Intent(name))
    try:
        yield
    finally:
        _current.reset(token)


class Tries:
    """All tries of one request are within `with tries.alone():`, and none of another request of the intent is.

    `with tries:` is one of them, and passes over a loss. Then `pause_seconds` is how long to wait for the next one.
    """

    def __init__(
        self,
        keys: Keys,
        patience: Patience,
        headers: MutableMapping[str, Any],
        was_sent: Callable[[BaseException | None], bool | None],
    ) -> None:
        """Gives the request its key. `was_sent` says of an error whether bytes may have left; None: it is no loss.

        Raises RuntimeError outside of an intent, where nothing may have an effect, and ValueError for another key.
        """
        found = _current.get(None)
        if found is None:
            raise RuntimeError("say what this request is for: with intent(NAME)")
        if not found.key:
            found.key = keys(found.name)
            found.known = Known.NEVER_HAPPENED if isinstance(found.key, New) else Known.IN_DOUBT
        if headers.setdefault("Idempotency-Key", found.key) != found.key:
            raise ValueError(f"the request has another key than its intent {found.name!r}")
        self.pause_seconds = 0.0
        self._intent, self._before = found, found.known
        self._patience, self._was_sent, self._begun = patience, was_sent, 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Raises RuntimeError beside another request: what is known of the one would be said of the other."""
        if not self._intent.on_its_way.acquire(blocking=False):
            raise RuntimeError(
                f"another request of the intent {self._intent.name!r} is on its way, and an intent is one request: "
                "wait for that, or open an intent for each"
            )
        try:
            yield
        finally:
            self._intent.on_its_way.release()

    def __enter__(self) -> None:
        self._before = self._intent.known
        if self._before is Known.NEVER_HAPPENED:
            # The next bytes may have an effect, also where nothing is heard of this try any more.
            self._intent.known = Known.IN_DOUBT
        self._begun += 1

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        was_sent = self._was_sent(error)
        if was_sent is False:
            self._intent.known = self._before
        if was_sent is not None:
            self._wait(0.0, {})
        return was_sent is not None

    def is_answer(self, status: int, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether this response is one; else there is a next try. Raises GaveUp."""
        self._intent.known = known_after(headers, self._before)
        says = advice(status, headers)
        if says is Advice.STOP:
            raise GaveUp(self._intent.name, self._intent.known, _problem(body), may_repeat=False)
        if says is Advice.REPEAT:
            after = headers.get("Retry-After", "")
            self._wait(float(after) if after.isdecimal() else 0.0, _problem(body))
        return says is Advice.ANSWER

    def _wait(self, asked_seconds: float, problem: Mapping[str, Any]) -> None:
        if self._begun >= self._patience.tries or asked_seconds > self._patience.longest_seconds:
            raise GaveUp(self._intent.name, self._intent.known, problem, may_repeat=True)
        grown = self._patience.first_seconds * 2.0 ** (self._begun - 1)
        self.pause_seconds = max(asked_seconds, min(grown, self._patience.longest_seconds))


def _problem(body: bytes) -> Mapping[str, Any]:
    try:
        read = json.loads(body)
    except ValueError:
        read = None
    return read if isinstance(read, dict) else {}
