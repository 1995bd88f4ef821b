"""The stores: what the gateway remembers.

*The contract* is `base` (what requests call) and `operations` (what upkeep and operators call), and `observations`
(what was only observed). The contract of a journal is in the package `journal`. The rest of the program imports only
these.

*In front of a durable store*, outermost first: `tiered` serves copies, from the process and from a fast tier. The guard
in `memory` lets no request through until two checks pass: that the store has lost no data, and that the configuration
still finds the remembered keys (`recipes`). Whatever of them there is, a command passes one coroutine (`gate`), which
also sees whether the store's clock goes on. On the way it encrypts what is confidential, as `sealed` does for all else;
`rekeying` does so again with the current key. All pass on what no request waits for by `cold`.

*The stores:* `postgres` and `sqlite`, which share `relational`, and `redis`, alone or as the fast tier. `level` says
which programs may use one, and which versions of formats they read and write.

*On this host*, for the successor of a process that was killed: `attempt_files` has what its attempts had sent. `files`
are those that each worker has, and what makes a file durable.

*Tools.* `batching` groups statements, `worker` runs a thread, and `watching` wakes waiters inside one process.

Entered by base.Store, operations.ManagedStore, journal.Journal, tiered.Tiered. Imports core, observe.
"""
