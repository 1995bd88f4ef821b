"""What is told: metrics, lines of the log, and the status port.

*Facts.* `facts` are what happened, as values. Their observers: `metrics` counts, `logs` writes lines, and `status` says
whether the gateway is ready.

*Numbers.* `catalogue` has the metrics, as tables of `series`. `exposition` writes them for a scrape, and `merging`
makes those of several workers one.

*Lines.* `lines` has their shape, `outages` decides which of those about what cannot be reached are worth saying, and
`pipe` carries them to a descriptor.

*Ports.* `side_port` is what those beside the traffic have in common.
"""
