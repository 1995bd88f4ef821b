-- name: lock
-- Every row of the table except those of `claim` and `complete`: lock and read the records. The same transaction writes
-- what `core.lifecycle` returns for them.
--
-- Those of $3 draw a token, after they are locked.
WITH locked AS MATERIALIZED (
    SELECT {row}
    FROM (SELECT i.for_id FROM unnest($2::uuid[]) AS i (for_id) ORDER BY i.for_id) i CROSS JOIN LATERAL (
        SELECT {row} FROM idempotency_gateway.operation o WHERE o.operation_id = i.for_id FOR NO KEY UPDATE
    ) o
), clock AS MATERIALIZED (
    -- Read the clock when every lock is held, so that it is later than every change that was waited for.
    SELECT {now} AS now_us FROM (SELECT count(*) FROM locked) locks
), raised AS (
    UPDATE idempotency_gateway.witness w SET number = w.number + 1
    WHERE w.link = $4::uuid AND EXISTS (SELECT FROM locked)
    RETURNING w.number
)
SELECT
    c.now_us, {row},
    CASE WHEN o.operation_id = ANY($3::uuid[]) THEN nextval('idempotency_gateway.token') END AS drawn_token,
    (SELECT r.number FROM raised r) AS witness
FROM clock c LEFT JOIN locked o ON true

-- name: update
-- No row of its own: the new versions of locked records, as the table returned them.
UPDATE idempotency_gateway.operation o SET
    {change_sets},
    drop_day = CASE
        WHEN c.state = 'completed' THEN idempotency_gateway.drop_day(c.completed_us, c.replay_until_us - c.completed_us)
    END
FROM unnest({change_arrays}) AS c ({change_names})
WHERE o.operation_id = c.operation_id
RETURNING o.operation_id

-- name: delete
-- No row of its own: locked records for which the table returned none, wherever they are.
WITH gone AS (
    DELETE FROM idempotency_gateway.operation o
    USING unnest($1::uuid[]) AS i (for_id)
    WHERE o.operation_id = i.for_id
    RETURNING o.operation_id
), forgotten AS (
    DELETE FROM idempotency_gateway.tombstone t
    WHERE t.operation_id = ANY($1::uuid[])
    RETURNING t.operation_id
)
SELECT g.operation_id FROM gone g
UNION
SELECT f.operation_id FROM forgotten f

-- name: insert_responses
-- No row of its own: the responses of records that became completed. A day without a partition fails the statement.
INSERT INTO idempotency_gateway.response (token, drop_day, reason, headers, body)
SELECT o.token, o.drop_day, i.new_reason, i.new_headers, i.new_body
FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bytea[]) AS i (of_token, new_reason, new_headers, new_body)
    JOIN idempotency_gateway.operation o ON o.token = i.of_token

-- name: delete_responses
-- No row of its own: the responses of purged records. Others are dropped with their partition.
DELETE FROM idempotency_gateway.response r
USING unnest($1::bigint[], $2::integer[]) AS i (of_token, of_drop_day)
WHERE r.token = i.of_token AND r.drop_day = i.of_drop_day

-- name: insert_audits
-- No row of its own: who ordered a change by hand or by probe, and why.
INSERT INTO idempotency_gateway.audit (operation_id, at_us, keep_until_us, token, event, who, why)
SELECT i.for_id, $1::bigint, $1::bigint + {audit_keep_us}, i.of_token, i.by_event, i.by_who, i.by_why
FROM unnest($2::uuid[], $3::bigint[], $4::text[], $5::text[], $6::text[])
    AS i (for_id, of_token, by_event, by_who, by_why)

-- name: deliveries
-- No row of its own: what is known of the kept requests of locked records.
SELECT {delivery}, d.operation_id
FROM unnest($1::uuid[]) AS i (for_id) CROSS JOIN LATERAL (
    SELECT {delivery}, d.operation_id FROM idempotency_gateway.delivery d WHERE d.operation_id = i.for_id LIMIT 1
) d

-- name: lock_lanes
-- No row of its own: lock lanes by the numbers of their locks, which are sorted, until the transaction ends. Taken after the
-- locks of operations; what the lock protects is read by a later statement.
SELECT pg_advisory_xact_lock({lane_space}, i.lane_key) FROM unnest($1::integer[]) AS i (lane_key)

-- name: draw_numbers
-- No row of its own: so many tokens, drawn when the lanes are locked whose numbers they are.
SELECT nextval('idempotency_gateway.token') AS number FROM generate_series(1, $1::bigint)

-- name: give_turns
-- No row of its own: mark the heads of locked lanes as not behind, and the others as behind. Returns the heads.
--
-- Only rows that were just written, and the former head, can be marked wrongly. So the first $2 of each line are looked at,
-- one more than were written.
WITH line AS MATERIALIZED (
    SELECT y.operation_id, y.is_behind, y.place > 1 AS should_be
    FROM unnest($1::bytea[]) AS l (of_lane) CROSS JOIN LATERAL (
        SELECT y.operation_id, y.is_behind, row_number() OVER (ORDER BY y.lane_rank) AS place
        FROM (
            SELECT d.operation_id, d.is_behind, d.lane_rank
            FROM idempotency_gateway.delivery d
            WHERE d.lane = l.of_lane AND d.lane_rank IS NOT NULL
            ORDER BY d.lane_rank
            LIMIT $2::bigint
        ) y
    ) y
), given AS (
    UPDATE idempotency_gateway.delivery d SET is_behind = NOT d.is_behind
    WHERE d.operation_id = ANY(ARRAY(SELECT y.operation_id FROM line y WHERE y.is_behind <> y.should_be))
)
SELECT y.operation_id FROM line y WHERE NOT y.should_be

-- name: write_deliveries
-- No row of its own: what is known from now on of the kept requests of locked records.
INSERT INTO idempotency_gateway.delivery AS d ({delivery_names}, operation, route, scope_digest)
SELECT {delivery_values}, o.operation, o.route, o.scope_digest
FROM unnest({delivery_arrays}) AS c ({delivery_names})
    JOIN idempotency_gateway.operation o ON o.operation_id = c.operation_id
ON CONFLICT (operation_id) DO UPDATE SET {delivery_sets}
RETURNING d.operation_id

-- name: insert_requests
-- No row of its own: the requests of records that were accepted again.
INSERT INTO idempotency_gateway.request (operation_id, acceptance_id, key_id, sealed)
SELECT i.for_id, i.new_acceptance_id, i.new_key_id, i.new_sealed
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bytea[]) AS i (for_id, new_acceptance_id, new_key_id, new_sealed)

-- name: drop_kept
-- No row of its own: the requests of records that keep them no more, and what was known of them.
WITH dropped AS (
    DELETE FROM idempotency_gateway.delivery d WHERE d.operation_id = ANY($1::uuid[])
)
DELETE FROM idempotency_gateway.request r
WHERE r.operation_id = ANY($1::uuid[])
RETURNING r.operation_id
