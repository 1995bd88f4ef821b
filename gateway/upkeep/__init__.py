"""Background work, each a pass that `timer` repeats. What one gateway does for all waits for its turn there.

`leftover` brings the journal's outcomes to the durable store, and ends the claims of processes that were killed.
`recovery` probes operations in doubt or has them sent again, `sweeper` writes what became due (lapsed leases, expired
records), and `tally` counts operations in doubt. `activity` samples what this process counts, for pictures.

Entered by timer.repeat, leftover.Flusher, recovery.RecoveryWorker, sweeper.Sweeper,
activity.ActivitySampler. Imports core, observe, protect, store.
"""
