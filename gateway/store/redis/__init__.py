"""Redis, as the fast tier, which serves copies and never grants a claim; and alone, as the durable store.

*Both* have `connection` (the driver), `masters`, which finds the servers, `keys`, which names what is there, and `news`
for waiters.

*The fast tier.* `store` keeps copies at one or several servers, each a `node`. `seen` is for the shared note on the
durable store, and `codec` for the bytes of a copy.

*The durable store.* `durable` is one `shard`, at a `primary` that keeps its `promise`; `cluster` is all of them. A
`client` reads it and makes a `change`, whose bytes are an `entry`. `inquiry` finds, `upkeep` sweeps, `members` are the
gateways, and `resealing` is for what is encrypted again.
"""
