"""What is remembered.

*Contracts.* `base` is that of a store, `journal_base` that of a journal. The rest of the program knows only these.

*In front of a durable store*, outermost first: `tiered` answers from copies, in the process (`cache`) and in a fast
tier; `spreading` brings copies there, `drops` takes purged ones away, `steadiness` watches the store's clock,
`tier_stats` counts. Behind it `front` lets nothing through until `epoch` has found that the store is the one that was
known, and has all that was noted in `witness_files`, and `recipes` that keys are still looked for where they are.

*SQLite.* `sqlite` is the store, `sqlite_connection` owns the driver and `sqlite_files` the place. `sqlite_statements`
executes the commands, `sqlite_witness` counts them, `sqlite_inquiry` and `sqlite_recipes` do what else is asked, and
`sqlite_rows` reads and writes records.

*Postgres.* `postgres` is the store, `postgres_dialer` owns the driver, `postgres_link` is one connection. Commands go
through `postgres_batch`, `postgres_statements` and `postgres_rows`, and `postgres_witness` counts them;
`postgres_schema`, `postgres_upkeep`, `postgres_inquiry` and `postgres_news` do the rest.

*Redis*, the fast tier: `redis`, on `redis_link` (the driver), with `redis_news` for waiters, `redis_seen` for the note
on the durable store, `redis_room` for what the log says of a full server, and `codec` for the bytes of a record.

*The journal.* `journal` is that of a process, out of `journal_file`, each in its `journal_place` with its
`journal_schema` and `journal_rows`. Operators look in by `journal_view` and `journal_visit`.

*Both databases* keep a request's line as `request_line` has it.

*Tools.* `batching` gathers statements, `worker` is a thread, `watching` wakes waiters inside one process, and
`directories` have their names on the disk.
"""
