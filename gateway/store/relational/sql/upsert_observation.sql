-- no row of the table: what was seen of a request, or what is thought of it by now; whether it was rekeyed is known at once
INSERT INTO observation (entry, service, route, id, began_us, content, seen, verdict, is_refused, is_repeat, is_rekeyed)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT (entry) DO UPDATE
SET verdict = excluded.verdict, is_refused = excluded.is_refused, is_repeat = excluded.is_repeat
