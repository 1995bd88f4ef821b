"""The composition root: only here does the configuration become objects.

*One process.* `life` has its event loop, and runs it from its signals to its exit code; `worker` is what it runs: a
`gateway`, and after a reload the next one. That is listeners around the `parts`, which have who verifies callers,
upstreams and traces, and are built from `stores`, with their keys, what they compare with what they have recorded, and
the sinks of their events. `reload` reads the file again and has it put in force; commands ask for that
through a socket. `host` prepares directories, certificates and the limit of open files, and checks files without
starting. `operating` builds what operators' commands need.

*Several processes.* `supervisor` starts, watches and stops workers, and has the channel to each. `share` counts
processors and workers, and has each one's share of the limits and of the sockets that accept connections. `worker` is
the program of one of them, too.

Entered by life.run, gateway.Gateway. Imports admin, callers, config, core, deliver, events, explain, http, observe,
protect, store, upkeep, upstream.
"""
