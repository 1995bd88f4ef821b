"""The fast tier: it may answer, and never grants.

`store` keeps copies, over `connection` (the driver), with `news` for waiters, `seen` for the note on the durable store
and `codec` for the bytes of a record.
"""
