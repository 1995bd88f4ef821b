"""The first caller of an operation: whose request a run executes, and who is told what became of it.

Owns nothing of the run, which goes on without it. It has no task: the run tells it, in passing, and it passes on what
that comes to for its caller, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, assert_never

from gateway.protect.attempt import Ending
from gateway.protect.claiming import Admission, Granted, Seen, Unavailable
from gateway.protect.duplicates import Duplicates
from gateway.protect.operations import Run
from gateway.protect.reply import Reply, Untouched
from gateway.protect.story import Story


class Lead:
    """See `runs.Leader`.

    `answer` is what the caller waits for; once it is done nobody does. `give` gets what the caller is to hear: an
    answer, or the record that was `Seen` where there is more to it than the record says by itself. Then, and only then,
    the request's body is the caller's again, as it is with what is `Untouched`.
    """

    __slots__ = ("_answer", "_duplicates", "_give", "_loop", "_story", "_timer", "_unavailable")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        story: Story,
        answer: asyncio.Future[Any],
        give: Callable[[Reply | Untouched | Seen], None],
        duplicates: Duplicates,
        unavailable: Callable[[Run, Unavailable], Reply | Untouched],
    ) -> None:
        self._loop = loop
        self._story = story
        self._answer = answer
        self._give = give
        self._duplicates = duplicates
        self._unavailable = unavailable
        self._timer: asyncio.TimerHandle | None = None

    def admitted(self, run: Run, admission: Admission) -> None:
        if isinstance(admission, Granted):
            # The body is the attempt's now.
            if not self._answer.done():
                self._wait(run, admission)
            return
        body = run.request.body
        if self._answer.done():
            body.close()
            return
        try:
            found = self._found(run, admission)
        except Exception as error:  # noqa: BLE001 - it concerns the caller, and not the run
            body.close()
            self._answer.set_exception(error)
            return
        if isinstance(found, Reply):
            body.close()
        self._give(found)

    def _found(self, run: Run, admission: Seen | Unavailable) -> Reply | Untouched | Seen:
        """What is to be said of a claim that was not granted."""
        match admission:
            case Seen(snapshot):
                return self._duplicates.by_itself(snapshot, run.request, self._story) or admission
            case Unavailable():
                return self._unavailable(run, admission)
            case _:
                assert_never(admission)

    def _wait(self, run: Run, admission: Granted) -> None:
        """Rule 15: this caller's request is the one that is executed."""
        story = self._story
        story.attempt = admission.record.attempts
        patience_seconds = run.request.route.target.answer_within_seconds - (self._loop.time() - story.arrived)
        self._timer = self._loop.call_later(max(0.0, patience_seconds), self._lose_patience, run, admission)

    def _lose_patience(self, run: Run, admission: Granted) -> None:
        self._timer = None
        if not self._answer.done():
            self._give(self._duplicates.still_running(run, admission, status=504))

    def ended(self, ending: Ending) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        if self._answer.done():
            return False
        story = self._story
        story.upstream_status, story.upstream_seconds = ending.upstream_status, ending.upstream_seconds
        self._give(ending.reply)
        return True
