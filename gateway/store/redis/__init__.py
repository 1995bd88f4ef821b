"""Redis, as the fast tier, which serves copies and never grants a claim; and alone, as the durable store.

*Both* have `connection`, which finds and reaches the servers, `layout` of what they keep, and `news` for waiters.

*The fast tier.* `store` keeps copies at servers that each are a `node`, and the shared note on the durable store.

*The durable store.* `durable` executes commands, and knows the memory and the gateways; `inquiry` reads, changes and
sweeps. `primary` is the server, with what that promises.
"""
