"""The composition root: only here does the configuration become objects.

*One process.* `serve` chooses between one process and several, `loop` is the event loop of each, `life` runs a process
from its signals to its exit code, and `generations` is what it runs: a `gateway`, and after a reload the next one. That
is listeners around the `parts`, which are built from `stores`, `callers`, `upstreams`, `events`, `tracing` and
`encryption`. `serving` is what a store compares with what it has recorded. `reload` reads the file again and has it put
in force; commands ask for that through `control`.
`host` prepares the directories and certificates, `descriptors` the limit of open files. `operating` builds what
operators' commands need, `rekeying` encrypts what is kept with the current key, and `tls_files` checks files without
starting.

*Several processes.* `supervisor` starts, watches and stops workers. `cpus` counts processors, `share` the workers and
each one's share of the limits; `seats` are the sockets that they accept connections on. `worker_process` is a worker as
its supervisor sees it, `worker` runs inside it, and `channel` carries the messages between them.

Entered by life.run, gateway.Gateway.
Imports admin, callers, config, core, deliver, events, explain, http, observe, protect, store, upkeep, upstream.
"""
