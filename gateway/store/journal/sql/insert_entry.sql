-- claimed | in_doubt --complete | release | forget | abandon | postpone | bury-->: kept here until the durable store applies it
INSERT OR REPLACE INTO entry (
    version, operation_id, token, attempt_id, event, route, journaled_us, command, body, claim, memory
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
RETURNING id
