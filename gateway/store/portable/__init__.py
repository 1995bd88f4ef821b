"""The durable store on distributed SQL, in what CockroachDB, YugabyteDB, Citus and PostgreSQL have in common.

`store` is the store, `connection` owns the driver, what a transaction is and when it is repeated, and `schema` the
tables. What is done inside a transaction is in the package "relational".
"""
