"""The fast tier: it serves copies, and never grants a claim.

`store` keeps copies, over `connection` (the driver), with `news` for waiters, `seen` for the shared note on the durable
store and `codec` for the bytes of a record.
"""
