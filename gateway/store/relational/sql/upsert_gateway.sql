-- no row of the table: a gateway whose configuration was accepted
INSERT INTO gateway (id, service, operations, host, seen_us, level) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET service = excluded.service, operations = excluded.operations, seen_us = excluded.seen_us
