"""What the stores share whose transactions execute the table: SQLite, Postgres, and distributed SQL.

`store` is all of such a store but its connections. `executor` executes commands as a set, and sweeps; `inquiry` has
what recovery, workers, relays and operators read and write, `rows` encodes and decodes records, and `statements` loads
the statements and generates those that write rows.
"""
