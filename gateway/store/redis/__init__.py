"""Redis, as the fast tier, which serves copies and never grants a claim; and alone, as the durable store.

*Both* have `connection` (the driver), `masters`, which finds the servers, `keys`, which names copies and channels, and
`news` for waiters.

*The fast tier.* `store` keeps copies at one or several servers, each a `node`. `seen` is for the shared note on the
durable store, and `codec` for the bytes of a copy.

*The durable store.* `durable` is the store, in layers of verbs: a `client` reads it at a `primary`, which keeps its
`promise`, and makes a `change`; `inquiry` finds, `upkeep` sweeps, `members` are the gateways. `layout` names its keys.
"""
