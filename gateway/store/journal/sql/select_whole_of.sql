-- All outcomes of one operation: the columns of `select_waiting.sql`, those that operators see, and those of
-- the claim.
SELECT id, version, operation_id, token, attempt_id, event, route,
    replay_us, remember_us, doubt, status, reason, headers, api_version, resource, body,
    pause_us, dead_letter, failure, is_answered,
    token, event, route, journaled_us, status, length(body), refused_us, refused_why,
    claim, memory
FROM entry WHERE operation_id = ? ORDER BY id LIMIT ?
