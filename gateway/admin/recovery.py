"""What gateways do about an operation in doubt, for operators: what was asked, what it came to, and what is next.

Pure: values in, values and sentences out. Whether a gateway runs that does it is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_never

from gateway.admin.view import ago, moment
from gateway.core.operation import Record
from gateway.core.recovery import Hold, Probe, Recovery, Resend, probe_target
from gateway.store.operations import RecoveryState


@dataclass(frozen=True, slots=True)
class Doubt:
    """A record in doubt at `now_us` of the store's clock, and how its route recovers."""

    recovery: Recovery
    record: Record
    probes: RecoveryState | None
    now_us: int

    @property
    def asked(self) -> RecoveryState | None:
        """What is kept of the probes of this doubt; one before a takeover was another."""
        return self.probes if self.probes is not None and self.probes.token == self.record.token else None


def recovery_json(doubt: Doubt) -> dict[str, Any]:
    """It as JSON values. Without `next_probe_at` there is none to come, or it is due."""
    about: dict[str, Any] = {"policy": type(doubt.recovery).__name__.lower()}
    asked = doubt.asked
    if asked is not None:
        about["probes"] = asked.tries
        if asked.asked_us:
            about |= {"last_probe_at": moment(asked.asked_us), "last_finding": asked.finding}
        if _is_asked(doubt) and asked.put_off_until_us > doubt.now_us:
            about["next_probe_at"] = moment(asked.put_off_until_us)
    return about


def recovery_rows(doubt: Doubt) -> list[tuple[str, str]]:
    """The same as labels and texts."""
    rows = [("recovery", type(doubt.recovery).__name__.lower())]
    asked = doubt.asked
    if asked is not None and asked.asked_us:
        rows.append(("last probe", f"{_when(asked.asked_us, doubt)}: {asked.finding}"))
    if _is_asked(doubt):
        rows.append(("next probe", _next_probe(doubt)))
    return rows


def recovery_step(doubt: Doubt) -> str:
    """What happens without an operator, in a sentence."""
    match doubt.recovery:
        case Hold():
            return "Nothing happens to it until somebody resolves it."
        case Resend():
            return "The next repeat of its request is sent to the service again; nothing happens before one comes."
        case Probe() if not _is_asked(doubt):
            return (
                "It cannot be probed: it was claimed before its route had this probe, and what the probe asks by (the "
                "key, the host or the path) is not kept with it. Nothing happens to it until somebody resolves it."
            )
        case Probe():
            return f"A running gateway asks the service about it: {_next_probe(doubt)}, and sooner for a repeat."
        case _:
            assert_never(doubt.recovery)


def _is_asked(doubt: Doubt) -> bool:
    return isinstance(doubt.recovery, Probe) and probe_target(doubt.recovery, doubt.record) is not None


def _next_probe(doubt: Doubt) -> str:
    asked = doubt.asked
    if asked is not None and asked.held_until_us > doubt.now_us:
        return "under way"
    if asked is not None and asked.put_off_until_us > doubt.now_us:
        return _when(asked.put_off_until_us, doubt)
    return "due"


def _when(at_us: int, doubt: Doubt) -> str:
    return f"{moment(at_us)} ({ago(at_us, doubt.now_us)})"
