"""What happens by itself, each a pass that `timer` repeats.

`flusher` brings the journal's outcomes to the durable store, `recovery` probes what is in doubt, `sweeper` writes down
what time has done, and `tally` counts what is in doubt.
"""
