"""The durable store that many gateways share.

`store` is the store, with the news between gateways. `dialer` owns the driver and its links, chooses and checks each
server; `connection` says what an error, a transaction and an engine are. `executor` executes commands over a link, in
transactions or by the hot verbs; `statements` has the texts, by dialect, and `schema` the migrations and partitions.
"""
