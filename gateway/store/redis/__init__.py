"""Redis, as the fast tier, which serves copies and never grants a claim; and alone, as the durable store.

*Both* have `connection`, which finds and reaches the servers, and has news for waiters.

*The fast tier.* `store` keeps copies at the masters that there are, and the shared note on the durable store.

*The durable store.* `durable` executes commands, and knows the memory and the gateways; `records` is what is kept, and
reads, changes and sweeps it. `primary` is the server, with what that promises.
"""
