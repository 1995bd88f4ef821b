"""The embedded store, for one host.

`store` is the store, `connection` owns the driver and the place of the file. `statements` executes the commands,
`inquiry` the lookups, `rows` reads and writes records.
"""
