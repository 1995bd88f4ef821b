"""The durable store that many gateways share.

`store` is the store, `dialer` owns the driver, and chooses and checks each server, `connection` is one connection, and
says which engine it has met. `executor` executes commands over it, in transactions or by the hot verbs; `statements`
has the texts, by dialect. `schema`, `days` (the partitions of responses) and `news` do the rest.
"""
