"""What the stores share whose transactions execute the table: SQLite, Postgres, and distributed SQL.

`store` is all of such a store but its connections, with what recovery, workers, relays and operators read and write.
`executor` executes commands as a set, and writes down what the clock did; `rows` encodes and decodes records,
loads the statements, and generates those that write rows.
"""
