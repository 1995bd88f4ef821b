-- no row of the table: records between two ids that are in doubt, written down as such or by the clock; and with the last
-- argument only those that nobody recovers and that were not put off
WITH doubt AS MATERIALIZED (
    SELECT row FROM operation WHERE state = 'in_doubt' AND id > ?1 AND id <= ?2
    UNION ALL
    SELECT row FROM operation WHERE state = 'claimed' AND due_us <= ?7 AND id > ?1 AND id <= ?2
)
SELECT
    o.row, o.id, o.version, o.state, o.token, o.attempt_id, o.last_event, o.holder, o.carries_doubt,
    o.fingerprint_recipe, o.fingerprint_digest, o.fingerprint_raw, o.fingerprint_key_id,
    o.attempts, o.first_claimed_us, o.claimed_us, o.lease_until_us, o.replay_until_us, o.remember_until_us, o.completed_us,
    o.doubt, o.resolution_id, o.status, o.reason, o.headers,
    o.body_kept, o.probe_target, o.probe_host,
    o.request, o.request_id, o.trace_id, o.route, o.operation, o.scope_digest, o.key_digest, o.key, NULL
FROM doubt CROSS JOIN operation AS o ON o.row = doubt.row
WHERE o.version = ?3 AND o.first_claimed_us <= ?4
    AND (?5 IS NULL OR o.route IN (SELECT value FROM json_each(?5)))
    AND (NOT ?6 OR NOT EXISTS (
        SELECT 1 FROM recovery
        WHERE recovery.id = o.id AND recovery.token = o.token AND max(held_until_us, put_off_until_us) > ?7
    ))
ORDER BY o.id
LIMIT ?8
