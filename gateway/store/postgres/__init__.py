"""The durable store that many gateways share.

`store` is the store, `dialer` owns the driver and checks each server, `hosts` chooses among several, `engine` says what
it is, `connection` is one connection. `batch` executes commands, with `arguments` for the hot statements and `change`
for the other commands; `rows` encodes and decodes records, `statements` loads the SQL. `schema`, `upkeep`, `tombstone`
(what becomes of their rows), `agreement` (what gateways serve), `member` (what they tell each other), `capability`
(what a server allows), `inquiry` (for recovery and operators), `delivery` (of kept requests), `event` (what sinks have
yet to receive), `content` (whose repeats are refused), `observation` (what was observed), `rekeying` (what is encrypted
again) and `news` do the rest.
"""
