"""Outcomes that the durable store has not applied yet, on this host's disk.

An outcome is the last command of an attempt (`OutcomeCommand`). What a journal has acknowledged is on the disk and
stays there until it is forgotten. A journal decides nothing: the durable store decides whether an outcome still
applies. Writing an outcome twice is harmless, and so is applying it twice to the durable store. Losing one is not.

`file` is one file and what an outcome is in it. `journal` is a process's journal, made of files, and the view of all
journals of a host, whether their processes run or have ended: for gateways that ask what became of an operation, and
for operators, who clear them, too.
"""

from gateway.store.journal.file import OF_ONE_MAX, EntryId, JournalEntry, JournalTally, KeptEntry, KeptOutcome
from gateway.store.journal.journal import HostJournals, JournalView, SqliteJournal

__all__ = [
    "OF_ONE_MAX",
    "EntryId",
    "HostJournals",
    "JournalEntry",
    "JournalTally",
    "JournalView",
    "KeptEntry",
    "KeptOutcome",
    "SqliteJournal",
]
