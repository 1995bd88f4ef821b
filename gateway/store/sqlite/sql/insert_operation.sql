-- absent --claim--> claimed; nothing, where there is a record
INSERT INTO operation (
    version, state, token, attempt_id, last_event, holder, carries_doubt,
    fingerprint_recipe, fingerprint_digest, fingerprint_raw, fingerprint_key_id,
    attempts, first_claimed_us, claimed_us, lease_until_us, replay_until_us, remember_until_us, completed_us,
    doubt, resolution_id, status, reason, headers, body_kept, due_us, probe_target, probe_host,
    request, request_id, trace_id,
    id, route, operation, scope_digest, key_digest, key
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING
