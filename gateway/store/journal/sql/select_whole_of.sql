-- All outcomes of one operation: as `select_entry.sql` gives them, then as an operator sees them.
SELECT id, version, operation_id, token, attempt_id, event, route,
    replay_us, remember_us, doubt, status, reason, headers, body,
    token, event, route, journaled_us, status, length(body), refused_us, refused_why
FROM entry WHERE operation_id = ? ORDER BY id LIMIT ?
