"""What is remembered.

*The contract* is `base`, what requests call, and `operations`, what upkeep and operators ask; that of a journal is in
the package `journal`. The rest of the program knows only these.

*In front of a durable store*, outermost first: `tiered` answers from copies, in the process (`cache`) and in a fast
tier. Behind it `guard` lets nothing through until `epoch` has found that the store is the one that was known, by what
`witness_files` on this host say, and `recipes` that keys are still looked for where they are.

*The stores:* `sqlite`, `postgres`, and `redis` as the fast tier.

*Tools.* `batching` gathers statements, `worker` is a thread, `watching` wakes waiters inside one process, and
`directories` have their names on the disk. `request_line` is a request as one column.
"""
