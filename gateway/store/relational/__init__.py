"""What the stores share whose transactions execute the table: SQLite, Postgres, and distributed SQL.

`store` is all of such a store but its connections. `executor` executes commands as a set, `sweep` writes down what the
clock did, `inquiry` looks up, `kept` has what concerns kept requests, `event` what sinks have yet to receive,
`rekeying` what is encrypted again, `rows` encodes and decodes records, and `statements` loads the statements and
generates those that write rows. `packing` is for records where there are no tables: in a journal, and in Redis.
"""
