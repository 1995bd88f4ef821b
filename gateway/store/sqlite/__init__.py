"""The embedded store, for one host.

`store` is the store, `connection` owns the driver and the file's location, and `transaction` is what the package
"relational" executes its statements in.
"""
