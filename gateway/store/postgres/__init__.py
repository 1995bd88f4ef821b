"""The durable store that many gateways share.

`store` is the store, `dialer` owns the driver and checks each server, `hosts` chooses among several, `connection` is
one connection, and says which engine it has met. `executor` executes commands over it, the usual ones by the statements
of `hot`; `transaction` is what the package "relational" does its work in, and `statements` has the texts, by dialect.
`horizon` says which claims can be seen. `schema`, `days` (the partitions of responses), `member` (what gateways tell
each other), `backlog` (how much waits), `capability` (what a server allows) and `news` do the rest.
"""
