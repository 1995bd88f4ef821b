"""The embedded store, for one host.

`store` is the store; `connection` owns the driver and the file's location. `statements` executes commands, `inquiry`
lookups, `kept` what concerns kept requests, `event` what sinks have yet to receive, `observation` what was observed,
`rekeying` what is encrypted again, and `rows` encodes and decodes records.
"""
