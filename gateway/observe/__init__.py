"""What is reported: metrics, the log, and the status port.

*Events.* `facts` are the events, as values, with what each changes of the metrics and its line in the log. `metrics`
counts them, in families that are merged over workers and written for a scrape, and reads the rest at each scrape.
`logs` makes and writes their lines, in a thread of its own. `status` derives from them whether the gateway is ready; it
has what the status port and the admin port have in common.

*Traces.* `tracing` decides which requests are sampled, and sends their spans.

Entered by facts.Events.publish, metrics.Metrics, logs.Logs, tracing.Tracing, status.StatusServer.
Imports core.
"""
