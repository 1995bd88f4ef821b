-- every row: the record as it was last written, with the body that is replayed; settled and judged by the table afterwards
-- (the body by a subquery, because a LEFT JOIN costs five times as much)
SELECT
    row, id, version, state, token, attempt_id, last_event, holder, carries_doubt,
    fingerprint_recipe, fingerprint_digest, fingerprint_raw, fingerprint_key_id,
    attempts, first_claimed_us, claimed_us, lease_until_us, replay_until_us, remember_until_us, completed_us,
    doubt, resolution_id, status, reason, headers, body_kept, probe_target, probe_host,
    request, request_id, trace_id, route, operation, scope_digest, key_digest, key,
    CASE WHEN body_kept THEN (SELECT body FROM response WHERE response.row = operation.row) END
FROM operation
WHERE id = ?
