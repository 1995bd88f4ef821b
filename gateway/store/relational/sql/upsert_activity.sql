-- no row of the table: what a process counted in this minute, and in these ten minutes so far
INSERT INTO activity (service, writer, span_us, at_us, until_us, body)
VALUES (?1, ?2, ?3, ?4, ?5, ?6), (?1, ?2, ?7, ?8, ?9, ?10)
ON CONFLICT (service, span_us, at_us, writer) DO UPDATE SET until_us = excluded.until_us, body = excluded.body
