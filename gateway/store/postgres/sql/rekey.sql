-- name: select_records_to_rekey
-- every row: the next records that can have something confidential, in the order of their ids
(
SELECT o.operation_id
FROM idempotency_gateway.operation o
WHERE o.operation_id > $1::uuid
ORDER BY o.operation_id
LIMIT $2::bigint
)
UNION
(
SELECT t.operation_id
FROM idempotency_gateway.tombstone t
WHERE t.operation_id > $1::uuid AND t.resource IS NOT NULL
ORDER BY t.operation_id
LIMIT $2::bigint
)
ORDER BY operation_id
LIMIT $2::bigint

-- name: select_sealed_operations
-- every row: some records that are encrypted with this key alone
SELECT o.operation_id
FROM idempotency_gateway.operation o
WHERE o.sealed_by = $1::text
LIMIT $2::bigint

-- name: select_sealed_requests
-- no row of the table: some kept requests that are encrypted with this key
SELECT r.operation_id, r.acceptance_id, r.key_id, r.sealed
FROM idempotency_gateway.request r
WHERE r.key_id = $1::text
LIMIT $2::bigint

-- name: reseal_tombstone
-- no row of the table: the reference under another key, in a tombstone that is as it was read
UPDATE idempotency_gateway.tombstone t
SET resource = $4::bytea
WHERE t.operation_id = $1::uuid AND t.token = $2::bigint AND t.resource = $3::bytea
RETURNING t.operation_id

-- name: reseal_operations
-- no row of the table: the same values under another key, in records that are as they were read
WITH input AS MATERIALIZED (
    SELECT *
    FROM unnest(
        $1::uuid[], $2::bigint[],
        $3::text[], $4::text[], $5::bytea[], $6::bytea[], $7::bytea[],
        $8::text[], $9::text[], $10::bytea[], $11::bytea[], $12::bytea[],
        $13::text[], $14::bytea[], $15::bytea[], $16::bytea[], $17::bytea[]
    ) AS i (
        for_id, for_token,
        old_key, old_request, old_probe_target, old_probe_host, old_resource,
        new_key, new_request, new_probe_target, new_probe_host, new_resource,
        new_sealed_by, old_headers, new_reason, new_headers, new_body
    )
    ORDER BY for_id
), locked AS MATERIALIZED (
    SELECT i.*, o.drop_day
    FROM input i CROSS JOIN LATERAL (
        SELECT o.drop_day
        FROM idempotency_gateway.operation o
        WHERE o.operation_id = i.for_id AND o.token = i.for_token
            AND o.key IS NOT DISTINCT FROM i.old_key
            AND o.request = i.old_request
            AND o.probe_target IS NOT DISTINCT FROM i.old_probe_target
            AND o.probe_host IS NOT DISTINCT FROM i.old_probe_host
            AND o.resource IS NOT DISTINCT FROM i.old_resource
            AND (i.old_headers IS NULL OR o.state = 'completed')
        FOR NO KEY UPDATE
    ) o
), answered AS (
    UPDATE idempotency_gateway.response r
    SET reason = l.new_reason, headers = l.new_headers, body = l.new_body
    FROM locked l
    WHERE l.old_headers IS NOT NULL AND r.token = l.for_token AND r.drop_day = l.drop_day AND r.headers = l.old_headers
    RETURNING r.token
)
UPDATE idempotency_gateway.operation o
SET key = l.new_key, request = l.new_request, probe_target = l.new_probe_target, probe_host = l.new_probe_host,
    resource = l.new_resource, sealed_by = l.new_sealed_by
FROM locked l
WHERE o.operation_id = l.for_id AND (l.old_headers IS NULL OR l.for_token IN (SELECT a.token FROM answered a))
RETURNING o.operation_id

-- name: select_requests_to_rekey
-- no row of the table: kept requests in their order
SELECT r.operation_id, r.operation_id, r.acceptance_id, r.key_id, r.sealed
FROM idempotency_gateway.request r
WHERE r.operation_id > $1::uuid
ORDER BY r.operation_id
LIMIT $2::bigint

-- name: reseal_requests
-- no row of the table: a kept request under another key, if it is the one that was read
UPDATE idempotency_gateway.request r
SET key_id = $4::text, sealed = $5::bytea
WHERE r.operation_id = $1::uuid AND r.key_id = $2::text AND r.sealed = $3::bytea
RETURNING r.operation_id

-- name: select_audits_to_rekey
-- no row of the table: audits in their order
SELECT a.operation_id, a.entry, a.operation_id, a.event, a.token, a.who, a.why
FROM idempotency_gateway.audit a
WHERE (a.operation_id, a.entry) > ($1::uuid, $2::bigint)
ORDER BY a.operation_id, a.entry
LIMIT $3::bigint

-- name: reseal_audits
-- no row of the table: the texts of an audit under another key
UPDATE idempotency_gateway.audit a
SET who = $5::text, why = $6::text
WHERE a.operation_id = $1::uuid AND a.entry = $2::bigint AND a.who = $3::text AND a.why = $4::text
RETURNING a.entry

-- name: select_pauses_to_rekey
-- no row of the table: pauses in their order
SELECT p.service, p.operation, p.service, p.operation, p.who, p.why
FROM idempotency_gateway.pause p
WHERE (p.service, p.operation) > ($1::text, $2::text)
ORDER BY p.service, p.operation
LIMIT $3::bigint

-- name: reseal_pauses
-- no row of the table: the texts of a pause under another key
UPDATE idempotency_gateway.pause p
SET who = $5::text, why = $6::text
WHERE p.service = $1::text AND p.operation = $2::text AND p.who = $3::text AND p.why = $4::text
RETURNING p.operation

-- name: select_suspensions_to_rekey
-- no row of the table: suspended sinks in their order
SELECT s.service, s.sink, s.service, s.sink, s.why
FROM idempotency_gateway.suspension s
WHERE (s.service, s.sink) > ($1::text, $2::text)
ORDER BY s.service, s.sink
LIMIT $3::bigint

-- name: reseal_suspensions
-- no row of the table: why a sink is suspended, under another key
UPDATE idempotency_gateway.suspension s
SET why = $4::text
WHERE s.service = $1::text AND s.sink = $2::text AND s.why = $3::text
RETURNING s.sink

-- name: select_events_to_rekey
-- no row of the table: events in their order
SELECT e.service, e.sink, e.event_id, e.event_id, e.sink, e.content, e.response, e.why
FROM idempotency_gateway.event e
WHERE (e.service, e.sink, e.event_id) > ($1::text, $2::text, $3::text)
ORDER BY e.service, e.sink, e.event_id
LIMIT $4::bigint

-- name: reseal_events
-- no row of the table: an event under another key
UPDATE idempotency_gateway.event e
SET content = $7::bytea, response = $8::bytea, why = $9::text
WHERE e.service = $1::text AND e.sink = $2::text AND e.event_id = $3::text AND e.content = $4::bytea
    AND e.response IS NOT DISTINCT FROM $5::bytea AND e.why = $6::text
RETURNING e.event_id

-- name: select_pause_audits_to_rekey
-- no row of the table: audits of pauses in their order
SELECT a.entry, a.service, a.operation, a.is_resumed, a.who, a.why
FROM idempotency_gateway.pause_audit a
WHERE a.entry > $1::bigint
ORDER BY a.entry
LIMIT $2::bigint

-- name: reseal_pause_audits
-- no row of the table: the texts of an audit of a pause under another key
UPDATE idempotency_gateway.pause_audit a
SET who = $4::text, why = $5::text
WHERE a.entry = $1::bigint AND a.who = $2::text AND a.why = $3::text
RETURNING a.entry

-- name: count_sealed
-- no row of the table: how many rows are encrypted with which keys, of each table up to a bound; from indexes alone, but of small
-- tables. The columns are those of `tally`, which it is asked with.
WITH RECURSIVE used (keys) AS (
    SELECT ''::text
    UNION ALL
    SELECT (SELECT min(n.keys) FROM (
        SELECT (SELECT t.sealed_by FROM idempotency_gateway.operation t WHERE t.sealed_by > u.keys ORDER BY t.sealed_by LIMIT 1) AS keys
        UNION ALL SELECT (
            SELECT split_part(encode(substr(t.resource, 2, 65), 'escape'), ':', 1)
            FROM idempotency_gateway.tombstone t
            WHERE substr(t.resource, 1, 1) = '\x01'::bytea
                AND split_part(encode(substr(t.resource, 2, 65), 'escape'), ':', 1) > u.keys
            ORDER BY split_part(encode(substr(t.resource, 2, 65), 'escape'), ':', 1)
            LIMIT 1
        )
        UNION ALL SELECT (SELECT t.key_id FROM idempotency_gateway.request t WHERE t.key_id > u.keys ORDER BY t.key_id LIMIT 1)
        UNION ALL SELECT (SELECT t.sealed_by FROM idempotency_gateway.audit t WHERE t.sealed_by > u.keys ORDER BY t.sealed_by LIMIT 1)
        UNION ALL SELECT (SELECT t.sealed_by FROM idempotency_gateway.pause t WHERE t.sealed_by > u.keys ORDER BY t.sealed_by LIMIT 1)
        UNION ALL SELECT (SELECT t.sealed_by FROM idempotency_gateway.pause_audit t WHERE t.sealed_by > u.keys ORDER BY t.sealed_by LIMIT 1)
        UNION ALL SELECT (SELECT t.sealed_by FROM idempotency_gateway.suspension t WHERE t.sealed_by > u.keys ORDER BY t.sealed_by LIMIT 1)
        UNION ALL SELECT (SELECT t.sealed_by FROM idempotency_gateway.event t WHERE t.sealed_by > u.keys ORDER BY t.sealed_by LIMIT 1)
        UNION ALL SELECT (
            SELECT t.why_sealed_by FROM idempotency_gateway.event t WHERE t.why_sealed_by > u.keys ORDER BY t.why_sealed_by LIMIT 1
        )
    ) n)
    FROM used u
    WHERE u.keys IS NOT NULL
)
SELECT NULL::text AS route, (SELECT count(*) FROM (
    SELECT 1 FROM (SELECT 1 FROM idempotency_gateway.operation t WHERE t.sealed_by = u.keys LIMIT $2::bigint) t0
    UNION ALL SELECT 1 FROM (
        SELECT 1
        FROM idempotency_gateway.tombstone t
        WHERE substr(t.resource, 1, 1) = '\x01'::bytea
            AND split_part(encode(substr(t.resource, 2, 65), 'escape'), ':', 1) = u.keys
        LIMIT $2::bigint
    ) t7
    UNION ALL SELECT 1 FROM (SELECT 1 FROM idempotency_gateway.request t WHERE t.key_id = u.keys LIMIT $2::bigint) t1
    UNION ALL SELECT 1 FROM (SELECT 1 FROM idempotency_gateway.audit t WHERE t.sealed_by = u.keys LIMIT $2::bigint) t2
    UNION ALL SELECT 1 FROM (SELECT 1 FROM idempotency_gateway.pause t WHERE t.sealed_by = u.keys LIMIT $2::bigint) t3
    UNION ALL SELECT 1 FROM (SELECT 1 FROM idempotency_gateway.pause_audit t WHERE t.sealed_by = u.keys LIMIT $2::bigint) t4
    UNION ALL SELECT 1 FROM (SELECT 1 FROM idempotency_gateway.suspension t WHERE t.sealed_by = u.keys LIMIT $2::bigint) t5
    UNION ALL SELECT 1 FROM (SELECT 1 FROM idempotency_gateway.event t WHERE t.sealed_by = u.keys LIMIT $2::bigint) t6
    UNION ALL SELECT 1 FROM (SELECT 1 FROM idempotency_gateway.event t WHERE t.why_sealed_by = u.keys LIMIT $2::bigint) t8
) counted) AS found, NULL::bigint AS oldest_us, u.keys
FROM used u
WHERE u.keys <> ''
