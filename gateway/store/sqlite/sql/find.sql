-- no row of the table: records between two ids that are in one of the states, or have come there by the clock alone; in
-- place of `body_kept` whether the body is missing that has to be there
SELECT
    o.row, o.id, o.version, o.state, o.token, o.attempt_id, o.last_event, o.holder, o.carries_doubt,
    o.fingerprint_recipe, o.fingerprint_digest, o.fingerprint_raw, o.fingerprint_key_id,
    o.attempts, o.first_claimed_us, o.claimed_us, o.lease_until_us, o.replay_until_us, o.remember_until_us, o.completed_us,
    o.doubt, o.resolution_id, o.status, o.reason, o.headers,
    o.body_kept AND NOT EXISTS (SELECT 1 FROM response WHERE response.row = o.row), o.probe_target, o.probe_host,
    o.request, o.request_id, o.trace_id, o.route, o.operation, o.scope_digest, o.key_digest, o.key, NULL
FROM operation AS o
WHERE o.id > ?1 AND o.id <= ?2 AND o.version = ?3 AND o.first_claimed_us <= ?4
    AND (?5 IS NULL OR o.route IN (SELECT value FROM json_each(?5)))
    AND (
        o.state IN (SELECT value FROM json_each(?6))
        OR o.state IN (SELECT value FROM json_each(?7)) AND (
            o.due_us <= ?8
            -- Without its body a completed record is a tombstone.
            OR o.body_kept AND NOT EXISTS (SELECT 1 FROM response WHERE response.row = o.row)
        )
    )
ORDER BY o.id
LIMIT ?9
