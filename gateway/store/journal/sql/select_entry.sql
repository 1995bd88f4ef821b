-- One waiting outcome, with the columns of `select_waiting.sql`.
SELECT id, version, operation_id, token, attempt_id, event, route,
    replay_us, remember_us, doubt, status, reason, headers, api_version, resource, body,
    pause_us, dead_letter, failure, is_answered
FROM entry WHERE id = ? AND refused_us IS NULL
