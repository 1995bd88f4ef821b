"""The composition root: only here does the configuration become objects.

*One process.* `serve` chooses between one process and several, `loop` is the event loop of each, `life` runs a process
from its signals to its exit code, and `generations` is what it runs: a `gateway`, and after a reload the next one. That
is listeners around the `parts`, upstreams and traces among them, which are built from `callers`, `events` and `stores`:
these have the keys that stores encrypt with, and say what a store compares with what it has recorded. `reload` reads
the file again and has it put in force; commands ask for that through a socket. `host` prepares directories,
certificates and the limit of open files, and `tls_files` checks files without starting. `operating` builds what
operators' commands need, and `rekeying` encrypts what is kept with the current key.

*Several processes.* `supervisor` starts, watches and stops workers. `share` counts processors and workers, and each
one's share of the limits; `seats` are the sockets that they accept connections on. `worker` runs inside a worker, and
`channel` carries the calls between the two.

Entered by life.run, gateway.Gateway. Imports admin, callers, config, core, deliver, events, explain, http, observe,
protect, store, upkeep, upstream.
"""
