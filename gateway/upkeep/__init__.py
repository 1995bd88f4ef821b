"""Background work, each a pass that `timer` repeats. What one gateway does for all waits for its turn there.

`flusher` brings the journal's outcomes to the durable store, `recovery` probes operations in doubt or has them sent
again, `sweeper` writes what became due (lapsed leases, expired records), `tally` counts operations in doubt, and
`unsent` ends the claims of processes that were killed before they sent anything. `activity` samples what this process
counts, for pictures.

Entered by timer.repeat, flusher.Flusher, recovery.RecoveryWorker, sweeper.Sweeper,
activity.ActivitySampler. Imports core, observe, protect, store.
"""
