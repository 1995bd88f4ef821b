-- name: select_operation
-- every row: the record as last written, with the body to replay; the caller settles it and applies the table
-- (the body by a subquery, because a LEFT JOIN costs SQLite five times as much)
SELECT {record}, CASE WHEN o.body_kept THEN (SELECT r.body FROM response AS r WHERE {response}) END
FROM operation AS o
WHERE o.id {among}
-- name: select_operation_by_row -- no row of the table: as `select_operation`, without the body
SELECT {record}, NULL FROM operation AS o WHERE o.{row} {among}
-- name: lock_operation -- every row: as `select_operation`, by a transaction that changes the record, without the body
SELECT {record}, NULL FROM operation AS o WHERE o.id {among} ORDER BY o.id {locked}
-- name: select_response -- completed: the body to replay, by the id of the operation
SELECT o.id, r.body FROM operation AS o {join} response AS r ON {response} WHERE o.id {among}
-- name: select_delivery -- every row: what is known of the kept request of operations that have one
SELECT row, {delivery} FROM delivery WHERE row {among}
-- name: select_kind -- tombstone: what many have in common
SELECT {kind} FROM kind WHERE kind {among}
-- name: insert_kind -- tombstone: what many have in common, while there are not too many kinds
INSERT INTO kind ({kind})
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11 WHERE (SELECT count(*) FROM kind) < {kinds_max}
ON CONFLICT (kind) DO NOTHING
-- name: update_granted
-- claimed --complete--> completed (fenced: token and attempt id): the record as it was granted, completed. A completion
-- overwrites whatever else happened to the record under this claim. A late one has more to tell, and is executed like others.
UPDATE operation SET {completed}
WHERE id = ? AND version BETWEEN {record_versions} AND token = ? AND attempt_id = ? AND state = 'claimed' AND lease_until_us > ? AND NOT request_kept
-- name: select_request -- no row of the table: the kept request of an operation
SELECT d.acceptance_id, r.key_id, r.sealed
FROM operation AS o {join} delivery AS d ON d.row = o.{row} {join} request AS r ON r.row = o.{row}
WHERE o.id = ? AND o.request_kept
-- name: find
-- no row of the table: records between two ids that are in one of the states, or have reached one by the clock alone; in
-- place of an existing body, an empty one
SELECT {record}, CASE WHEN o.body_kept AND EXISTS (SELECT 1 FROM response AS r WHERE {response}) THEN CAST('' AS {bytes}) END
FROM operation AS o LEFT JOIN kind AS k ON k.kind = o.kind
WHERE o.id > ?1 AND o.id <= ?2 AND o.version BETWEEN {record_versions}
    AND NOT (coalesce(o.first_claimed_us, o.remember_until_us - k.kept_us) > ?3 AND coalesce(o.first_claimed_us, o.remember_until_us - k.kept_us) <= ?7)
    AND (CAST(?4 AS TEXT) IS NULL OR coalesce(o.route, k.route) IN (SELECT value FROM {each of ?4}))
    AND (
        coalesce(o.state, 'tombstone') IN (SELECT value FROM {each of ?5})
        OR o.state IN (SELECT value FROM {each of ?6}) AND (
            o.due_us <= ?7
            -- Without its body a completed record is a tombstone.
            OR o.body_kept AND NOT EXISTS (SELECT 1 FROM response AS r WHERE {response})
        )
    )
ORDER BY o.id
LIMIT ?8
-- name: find_stopped
-- no row of the table: records between two ids that are in doubt or dead letters, written as such or made so by the clock;
-- with `?7` only those whose recovery lease is free and that were not put off
SELECT {record}, NULL
FROM (
    SELECT {row} FROM operation WHERE state = ?5 AND state IN ('in_doubt', 'dead_letter') AND id > ?1 AND id <= ?2
    UNION ALL
    SELECT {row} FROM operation WHERE state = ?6 AND due_us <= ?8 AND id > ?1 AND id <= ?2
) AS stopped {join} operation AS o ON o.{row} = stopped.{row}
WHERE o.version BETWEEN {record_versions} AND NOT (o.first_claimed_us > ?3 AND o.first_claimed_us <= ?8)
    AND (CAST(?4 AS TEXT) IS NULL OR o.route IN (SELECT value FROM {each of ?4}))
    AND (NOT CAST(?7 AS BOOLEAN) OR {may be probed})
ORDER BY o.id
LIMIT ?9
-- name: select_horizon -- no row of the table: the last of this many records after an id; none when there are fewer
SELECT id FROM operation WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?
-- name: select_horizon_by_row -- no row of the table: as `select_horizon`, in the order of insertion
SELECT {row} FROM operation WHERE {row} > ? ORDER BY {row} LIMIT 1 OFFSET ?
-- name: select_horizon_stopped
-- no row of the table: as `select_horizon`, among the records written as in doubt or as dead letters
SELECT id FROM operation
WHERE state = ? AND state IN ('in_doubt', 'dead_letter') AND id > ?
ORDER BY id
LIMIT 1 OFFSET ?
-- name: tally
-- in_doubt, and claimed --lapse--> in_doubt not yet swept: by route, with the earliest doubt
-- (the second condition is that of the index)
SELECT route, count(*), min(coalesce(carried_us, lease_until_us)) FROM operation
WHERE state = 'in_doubt' AND state IN ('in_doubt', 'dead_letter')
GROUP BY route
UNION ALL
SELECT route, count(*), min(coalesce(carried_us, lease_until_us)) FROM operation
WHERE state = 'claimed' AND due_us <= ?
GROUP BY route
-- name: select_alive
-- no row of the table: the remembered keys of an operation name, settled, with what their ids are derived from, until when
-- they are kept (NULL: until an attempt or a person ends them), and the key of their fingerprint; of a narrow one the service
-- in place of the digest of its key. Reads every record between the two rows; runs only at a start with another configuration.
SELECT o.id, o.scope_digest, o.key_digest,
    CASE
        WHEN o.state IN ('accepted', 'claimed', 'in_doubt', 'dead_letter') THEN NULL
        WHEN o.state = 'completed' THEN {greatest}(o.replay_until_us, o.remember_until_us)
        ELSE o.remember_until_us
    END,
    coalesce(o.fingerprint_key_id, k.fingerprint_key_id), k.service
FROM operation AS o LEFT JOIN kind AS k ON k.kind = o.kind
WHERE o.{row} > ?3 AND o.{row} <= ?4 AND coalesce(o.operation, k.operation) = ?1
    AND (
        o.state IN ('accepted', 'claimed', 'in_doubt', 'dead_letter')
        OR o.remember_until_us > ?2
        OR (o.state = 'completed' AND o.replay_until_us > ?2)
    )
-- name: select_content_holders
-- no row of the table: the operations that hold contents (`core.lifecycle`), and until when
SELECT c.until_us, c.id, c.digest
FROM content AS c JOIN operation AS o ON o.id = c.id AND o.fingerprint_digest = {fingerprint of c}
WHERE c.digest {among}
    AND (
        o.state NOT IN ('released', 'completed', 'tombstone')
        OR coalesce(o.state, 'tombstone') <> 'released' AND c.until_us > ?2 AND {greatest}(coalesce(o.replay_until_us, 0), o.remember_until_us) > ?2
    )
-- name: select_to_rekey -- every row: the next records, in the order of their ids
SELECT id FROM operation WHERE id > ?1 ORDER BY id LIMIT ?2
-- name: select_sealed_operations -- every row: some records that are encrypted with this key alone
SELECT id FROM operation WHERE sealed_by = ?1 LIMIT ?2
-- name: select_sealed_requests -- no row of the table: some kept requests that are encrypted with this key
SELECT o.id, d.acceptance_id, r.key_id, r.sealed
FROM request AS r {join} operation AS o ON o.{row} = r.row {join} delivery AS d ON d.row = r.row
WHERE r.key_id = ?1 LIMIT ?2
-- name: reseal_operation -- no row of the table: the same values under another key, if they are as they were read
UPDATE operation SET {resealed} WHERE id = ? AND token = ? AND {as sealed before}
-- name: reseal_response -- no row of the table: the body of a response under another key
UPDATE response AS r SET body = ?1 FROM operation AS o WHERE o.id = ?2 AND {response}
