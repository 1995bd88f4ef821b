"""What is told: metrics, lines of the log, and the status port.

*Facts.* `facts` are what happened, as values. Their observers: `metrics` counts, `logs` writes lines, and `status` says
whether the gateway is ready.

*Numbers.* `metrics` has them, and `exposition` makes those of several workers one and writes them for a scrape.

*Lines.* `lines` has their shape, `outages` decides which of those about what cannot be reached are worth saying, and
`pipe` carries them to a descriptor.

*Ports.* `side_port` is what those beside the traffic have in common.
"""
