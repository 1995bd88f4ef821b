-- The outcomes behind this one that may have something confidential, whether they wait or were refused.
SELECT id, version, operation_id, token, attempt_id, event, route,
    replay_us, remember_us, doubt, status, reason, headers, api_version, resource, body,
    pause_us, dead_letter, failure, is_answered
FROM entry
WHERE id > ? AND (headers IS NOT NULL OR resource IS NOT NULL)
ORDER BY id
LIMIT 20
