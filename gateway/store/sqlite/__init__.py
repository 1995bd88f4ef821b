"""The embedded store, for one host.

`store` is the store; `connection` owns the driver, the file's location, and what the package "relational" executes its
statements in.
"""
