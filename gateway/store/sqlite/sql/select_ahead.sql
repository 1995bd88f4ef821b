-- no row of the table: claims whose lease ends later than any that begins now, because the clock was set back since; never
-- one that a newer program wrote
SELECT
    row, id, version, state, token, attempt_id, last_event, holder, carries_doubt,
    fingerprint_recipe, fingerprint_digest, fingerprint_raw, fingerprint_key_id,
    attempts, first_claimed_us, claimed_us, lease_until_us, replay_until_us, remember_until_us, completed_us,
    doubt, resolution_id, status, reason, headers, body_kept, probe_target, probe_host,
    request, request_id, trace_id, route, operation, scope_digest, key_digest, key, NULL
FROM operation
WHERE state = ? AND due_us > ? AND version = ?
LIMIT ?
