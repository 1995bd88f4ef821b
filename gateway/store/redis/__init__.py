"""The fast tier: it serves copies, and never grants a claim.

`store` keeps copies at one or several servers, each a `node` over `connection` (the driver). `masters` finds the
servers, `keys` names what is there, `news` is for waiters, `seen` for the shared note on the durable store, and `codec`
for the bytes of a record.
"""
