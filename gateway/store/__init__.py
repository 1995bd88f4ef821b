"""The stores: what the gateway remembers.

*The contract* is `base` (what requests call) and `operations` (what all others call). The contract of a journal is in
the package `journal`. The rest of the program imports only these.

*In front of a durable store*, outermost first: `tiered` serves copies, from the process and from a fast tier. The guard
in `memory` lets no request through until two checks pass: that the store has lost no data, and that the configuration
still finds the remembered keys (`agreement`). Whatever of them there is, a command passes one coroutine in
`sealed`, which also sees whether the store's clock goes on. On the way, and back, what is confidential is encrypted.

*The stores:* `postgres` and `sqlite`, which share `relational`, and `redis`, alone or as the fast tier. `agreement`
says which programs and gateways share one, and which versions of formats they read and write.

*On this host*, for the successor of a process that was killed, `files` have what its attempts had sent.

*Tools.* `batching` groups statements, also for a thread.

Entered by base.Store, operations.ManagedStore, journal.SqliteJournal, tiered.Tiered. Imports core, observe.
"""
