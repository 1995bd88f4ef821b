"""Background work, each a pass that is repeated.

`leftover` brings the journal's outcomes to the durable store, and ends the claims of processes that were killed. `duty`
has the timer, what one gateway does for all, and whose turn it is: it writes what became due (lapsed leases, expired
records), probes operations in doubt or has them sent again, and counts them. `activity` samples what this process
counts, and adds what all processes did, for pictures.

Entered by duty.repeat, leftover.Flusher, duty.Turns, duty.RecoveryWorker, duty.Sweeper, activity.ActivitySampler,
activity.gathered. Imports core, observe, protect, store.
"""
