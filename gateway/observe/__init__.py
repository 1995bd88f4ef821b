"""What is reported: metrics, the log, and the status port.

*Facts.* `facts` are what happened, as values. Their observers: `metrics` counts them, `logs` logs them, and `status`
keeps whether the gateway is ready.

*Numbers.* `exposition` keeps them in families, makes those of several workers one and writes them for a scrape.

*Lines.* `writer` formats log records and writes them in a thread of its own.

*Ports.* `side_port` is what those beside the traffic have in common.
"""
