"""Redis, as the fast tier, which serves copies and never grants a claim; and alone, as the durable store.

*Both* have `connection`, which finds and reaches the servers, and `news` for waiters.

*The fast tier.* `store` keeps `copies` at one or several servers, each a `node`. `seen` is for the shared note on the
durable store.

*The durable store.* `durable` executes commands; `inquiry` reads, changes and sweeps, and `members` are the gateways.
`layout` is what it keeps, and `primary` the server, with what that promises.
"""
