"""The fast tier: it may answer, and never grants.

`store` keeps copies, on `link` (the driver), with `news` for waiters, `seen` for the note on the durable store, `room`
for what the log says of a full server, and `codec` for the bytes of a record.
"""
