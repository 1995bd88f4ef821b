"""What is reported: metrics, the log, and the status port.

*Events.* `facts` are the events, as values, with what each changes of the metrics and its line in the log. `metrics`
counts them, and their observers are `logs` and `status`, which derives from them whether the gateway is ready.

*Metrics.* `exposition` keeps the numbers in families, merges those of several workers and writes them for a scrape.
`readings` has what is read at each scrape instead of being an event.

*Traces.* `tracing` decides which requests are sampled, and sends their spans.

*Log lines.* `writer` makes and writes them in a thread of its own.

*Ports.* `side_port` is what the status port and the admin port have in common.
"""
