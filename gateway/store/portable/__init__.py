"""The durable store on distributed SQL, in what CockroachDB, YugabyteDB, Citus and PostgreSQL have in common.

`store` is the store, `hot` executes claims of new keys and usual completions by one statement for many, `connection`
owns the driver, what a transaction is and when it is repeated, `memory` has what its connections have in common, and
`schema` the tables. What is done inside a transaction is in the package "relational".
"""
