-- Waiting outcomes after a given one, in the order of writing.
SELECT id, version, operation_id, token, attempt_id, event, route,
    replay_us, remember_us, doubt, status, reason, headers, api_version, resource, body,
    pause_us, dead_letter, failure, is_answered
FROM entry INDEXED BY entry_waiting WHERE refused_us IS NULL AND id > ? ORDER BY id LIMIT ?
