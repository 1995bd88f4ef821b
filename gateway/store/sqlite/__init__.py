"""The embedded store, for one host.

`store` is the store, `connection` owns the driver and `files` the place. `statements` executes the commands, `inquiry`
and `recipes` the lookups, `rows` reads and writes records. `witness` is what a copy of the file lacks.
"""
