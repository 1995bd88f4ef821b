-- claimed | in_doubt --complete--> completed (fenced: token and attempt id): what the table made of the record as it was
-- granted. Whatever else may have happened to it under this claim, a completion leaves no trace of.
UPDATE operation SET
    version = ?, state = ?, token = ?, attempt_id = ?, last_event = ?, holder = ?, carries_doubt = ?,
    fingerprint_recipe = ?, fingerprint_digest = ?, fingerprint_raw = ?, fingerprint_key_id = ?,
    attempts = ?, first_claimed_us = ?, claimed_us = ?, lease_until_us = ?, replay_until_us = ?, remember_until_us = ?,
    completed_us = ?, doubt = ?, resolution_id = ?, status = ?, reason = ?, headers = ?, body_kept = ?, due_us = ?,
    probe_target = ?, probe_host = ?, request = ?, request_id = ?, trace_id = ?
WHERE id = ? AND version = ? AND token = ? AND attempt_id = ? AND state IN ('claimed', 'in_doubt')
