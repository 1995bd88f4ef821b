"""The composition root: the configuration becomes objects here, and nowhere else are they put together.

*One process.* `serve` chooses between one and several, `life` takes a process from its signals to its exit code, and
`gateway` is what lives: listeners around the `parts`, which are put together there and nowhere else, out of `stores`,
`routes` and `upstreams`. It needs of its `host` a directory, a certificate and open files, which `descriptors` counts.
`operating` makes what operators' commands need, and `tls_files` is what a check
says of certificates.

*Several processes.* `supervisor` has workers started, watched and ended. `cpus` counts processors, `share` how many
workers there are and what each one's part is; `seats` are the sockets that they take connections on. `worker_process`
is a worker as its supervisor has it, `worker` as it is itself, and `channel` what they say to each other.
"""
