"""The stores: what the gateway remembers.

*The contract* is `base` (what requests call) and `operations` (what upkeep and operators call), and
`observations` (what was only observed). The contract of a journal is in the package `journal`. The rest of the program
imports only these.

*In front of a durable store*, outermost first, passing on by `cold` what no request waits for: `tiered` serves copies, from
the process (`cache`) and from a fast tier. `guard` lets no request through until two checks pass: `epoch` finds no lost data, by
what `witness` and `witness_files` recorded, and `recipes` finds that the configuration still finds the remembered keys.
`membership` is this worker's place among those that may grant, and `promotion` decides whether a promoted server is
believed. `sealed` encrypts what the store keeps, and `rekeying` does so again with the current key. Where a store has
shards, `sharded` is in front of their guards.

*The stores:* `postgres`; `sqlite` and `portable`, which share `relational`; and `redis`, alone or as the fast tier.
`level` says which programs may use one, and which versions of formats they read and write.

*On this host*, for the successor of a process that was killed: `attempt_files` has what its attempts had sent.

*Tools.* `batching` groups statements, `worker` runs a thread, `watching` wakes waiters inside one process,
`directories` makes directory entries durable, and `request_line` packs a request into one column.
"""
