-- claimed | in_doubt --complete | release | forget | abandon-->: said here, to be said to the durable store later
INSERT OR REPLACE INTO entry (
    version, operation_id, token, attempt_id, event, route, journaled_us,
    replay_us, remember_us, doubt, status, reason, headers, body
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
RETURNING id
