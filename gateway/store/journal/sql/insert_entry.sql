-- claimed | in_doubt --complete | release | forget | abandon | postpone | bury-->: kept here until the durable store applies it
INSERT OR REPLACE INTO entry (
    version, operation_id, token, attempt_id, event, route, journaled_us,
    replay_us, remember_us, doubt, status, reason, headers, api_version, resource, body, pause_us, dead_letter, failure,
    is_answered, claim, memory
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
RETURNING id
