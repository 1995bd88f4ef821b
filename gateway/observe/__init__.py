"""What is told: metrics, lines of the log, and the status port.

*Facts.* `facts` are what happened, as values. Their observers: `metrics` counts, `logs` logs, and `status` says
whether the gateway is ready.

*Numbers.* `metrics` has them, and `exposition` makes those of several workers one and writes them for a scrape.

*Lines.* `logs` has their words, and `writer` formats them and carries them to a descriptor.

*Ports.* `side_port` is what those beside the traffic have in common.
"""
