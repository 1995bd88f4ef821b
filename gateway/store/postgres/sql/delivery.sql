-- name: find_due
-- No row of the table: the accepted records whose next attempt is due, the longest due first, and in each row, of which there
-- is at least one, all operation names that are paused. They are those of the routes $4 under the operation names $5, and
-- under the names $6 those of all routes but $7.
--
-- Of each route no more is read than may be returned, and nothing that waits for its turn in a lane. Beside what is due, it is
-- what waits since a time in the future, because the clock was set back, of what is due last.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT
        {now} AS now_us,
        ARRAY(SELECT p.operation FROM idempotency_gateway.pause p WHERE p.service = $2::text) AS paused
), waiting AS (
    -- From one route to the next along the index: what waits is not read.
    SELECT a.of_name, ''::text AS of_route, 0 AS place FROM unnest($6::text[]) AS a (of_name)
    UNION ALL
    SELECT w.of_name, d.route, w.place + 1
    FROM waiting w CROSS JOIN LATERAL (
        SELECT d.route
        FROM idempotency_gateway.delivery d
        WHERE d.waits = 'accepted' AND NOT d.is_behind AND d.service = $2::text AND d.operation = w.of_name
            AND d.route > w.of_route
        ORDER BY d.route
        LIMIT 1
    ) d
    WHERE w.place < {former_routes_max}
), delivered AS MATERIALIZED (
    SELECT a.of_route, a.of_name FROM unnest($4::text[], $5::text[]) AS a (of_route, of_name)
    UNION ALL
    SELECT w.of_route, w.of_name FROM waiting w WHERE w.place > 0 AND w.of_route <> ALL ($7::text[])
), due AS MATERIALIZED (
    SELECT y.operation_id, y.next_attempt_us
    FROM clock c CROSS JOIN delivered n CROSS JOIN LATERAL (
        (
            SELECT d.operation_id, d.next_attempt_us
            FROM idempotency_gateway.delivery d
            WHERE d.waits = 'accepted' AND NOT d.is_behind AND d.service = $2::text AND d.operation = n.of_name
                AND d.route = n.of_route AND d.next_attempt_us <= c.now_us AND d.deliver_until_us > c.now_us
            ORDER BY d.next_attempt_us
            LIMIT $3::bigint
        )
        UNION ALL
        SELECT d.operation_id, d.next_attempt_us
        FROM (
            SELECT d.operation_id, d.next_attempt_us, d.since_us
            FROM idempotency_gateway.delivery d
            WHERE d.waits = 'accepted' AND NOT d.is_behind AND d.service = $2::text AND d.operation = n.of_name
                AND d.route = n.of_route AND d.next_attempt_us > c.now_us AND d.deliver_until_us > c.now_us
            ORDER BY d.next_attempt_us DESC
            LIMIT {ahead_max}
        ) d CROSS JOIN LATERAL (
            SELECT o.claimed_us FROM idempotency_gateway.operation o WHERE o.operation_id = d.operation_id LIMIT 1
        ) o
        WHERE greatest(d.since_us, o.claimed_us) > c.now_us + {step_us}
    ) y
    WHERE n.of_name <> ALL (c.paused)
    ORDER BY y.next_attempt_us
    LIMIT $3::bigint
)
SELECT c.now_us, c.paused, {record}, {delivery}
FROM clock c LEFT JOIN (
    due y CROSS JOIN LATERAL (
        SELECT {record} FROM idempotency_gateway.operation o WHERE o.operation_id = y.operation_id LIMIT 1
    ) o CROSS JOIN LATERAL (
        SELECT {delivery} FROM idempotency_gateway.delivery d WHERE d.operation_id = y.operation_id LIMIT 1
    ) d
) ON true
ORDER BY y.next_attempt_us, y.operation_id

-- name: read_kept
-- No row of the table: the kept request of an operation.
SELECT r.acceptance_id, r.key_id, r.sealed FROM idempotency_gateway.request r WHERE r.operation_id = $1::uuid

-- name: count_pending
-- No row of the table: counts the accepted records of one scope on one route, up to a limit.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
)
SELECT count(*) AS pending
FROM (
    SELECT
    FROM idempotency_gateway.delivery d
    WHERE d.waits = 'accepted' AND d.service = $2::text AND d.route = $3::text AND d.scope_digest = $4::bytea
        AND d.deliver_until_us > (SELECT c.now_us FROM clock c)
    LIMIT $5::bigint
) pending

-- name: count_backlog
-- No row of the table: counts by route and reason what a service has not delivered, and by route the lanes that are stopped. No
-- reason: it is accepted. Beside them the operation names that are paused, with who did and why.
--
-- Reads at most $3 rows of each kind; with $3 of one kind, its counts are too low.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
), undelivered AS MATERIALIZED (
    (
        SELECT d.route, d.waits, d.reason, d.request_bytes, d.accepted_us, d.deliver_until_us
        FROM idempotency_gateway.delivery d
        WHERE d.waits = 'accepted' AND d.service = $2::text
        LIMIT $3::bigint
    )
    UNION ALL
    (
        SELECT d.route, d.waits, d.reason, d.request_bytes, d.accepted_us, d.deliver_until_us
        FROM idempotency_gateway.delivery d
        WHERE d.waits = 'dead_letter' AND d.service = $2::text
        LIMIT $3::bigint
    )
    UNION ALL
    (
        SELECT d.route, 'stopped', NULL, 0, d.stopped_us, NULL
        FROM idempotency_gateway.delivery d
        WHERE d.stopped_us IS NOT NULL AND NOT d.is_behind AND d.service = $2::text
        LIMIT $3::bigint
    )
)
SELECT
    c.now_us, u.route, u.waits, {reason_now(u, c)} AS dead_reason, count(*) AS found,
    sum(u.request_bytes)::bigint AS request_bytes, min(u.accepted_us) AS oldest_us, NULL::text AS who
FROM undelivered u CROSS JOIN clock c
GROUP BY 1, 2, 3, 4
UNION ALL
SELECT NULL, p.operation, 'paused', p.why, 0, 0, p.since_us, p.who
FROM idempotency_gateway.pause p
WHERE p.service = $2::text

-- name: sample_backlog
-- No row of the table: estimates the same from some pages of the table, $3 percent of them.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
)
SELECT
    c.now_us, d.route, d.waits, {reason_now(d, c)} AS dead_reason, count(*) AS found,
    sum(d.request_bytes)::bigint AS request_bytes, min(d.accepted_us) AS oldest_us
FROM idempotency_gateway.delivery d TABLESAMPLE SYSTEM ($3::real) CROSS JOIN clock c
WHERE d.waits IS NOT NULL AND d.service = $2::text
GROUP BY 1, 2, 3, 4

-- name: delivery_bytes
-- No row of the table: the size of the table of deliveries.
SELECT pg_relation_size('idempotency_gateway.delivery') AS size_bytes

-- name: paused
-- No row of the table: the operation names of a service that are paused.
SELECT p.operation, p.since_us, p.who, p.why FROM idempotency_gateway.pause p WHERE p.service = $1::text

-- name: pause
-- No row of the table: pauses an operation name, also where its pause is being ended, and writes down who did.
WITH paused AS (
    INSERT INTO idempotency_gateway.pause AS p (service, operation, since_us, who, why)
    SELECT $2::text, $3::text, {now}, $4::text, $5::text
    ON CONFLICT (service, operation) DO UPDATE SET resumed_us = NULL WHERE p.resumed_us IS NOT NULL
    RETURNING {now} AS at_us
), expired AS (
    DELETE FROM idempotency_gateway.pause_audit a USING paused p
    WHERE a.service = $2::text AND a.at_us < p.at_us - {audit_keep_us}
)
INSERT INTO idempotency_gateway.pause_audit (at_us, is_resumed, service, operation, who, why)
SELECT p.at_us, false, $2::text, $3::text, $4::text, $5::text FROM paused p
RETURNING at_us

-- name: pause_audits
-- No row of the table: the last pauses of a service and their ends, oldest first.
SELECT l.at_us, l.operation, l.is_resumed, l.who, l.why
FROM (
    SELECT a.at_us, a.operation, a.is_resumed, a.who, a.why
    FROM idempotency_gateway.pause_audit a WHERE a.service = $1::text
    ORDER BY a.at_us DESC
    LIMIT $2::bigint
) l
ORDER BY l.at_us, l.is_resumed

-- name: move_pauses
-- No row of the table: a pause that begins in the future, because the clock was set back, begins now.
UPDATE idempotency_gateway.pause p SET since_us = {now} WHERE p.since_us > {now}

-- name: resume_pause
-- No row of the table: the pause of an operation name is being ended. Returns nothing where there is none.
UPDATE idempotency_gateway.pause p SET resumed_us = {now} WHERE p.service = $2::text AND p.operation = $3::text
RETURNING p.since_us

-- name: resume
-- No row of the table: ends the pause of an operation name, and writes down who did.
WITH resumed AS (
    DELETE FROM idempotency_gateway.pause p WHERE p.service = $2::text AND p.operation = $3::text RETURNING p.since_us
)
INSERT INTO idempotency_gateway.pause_audit (at_us, is_resumed, service, operation, who, why)
SELECT {now}, true, $2::text, $3::text, $4::text, $5::text FROM resumed
RETURNING at_us

-- name: credit_pause
-- No row of the table: adds the length of a pause to the time that the accepted records of its name have, in a piece of the
-- table. Returns the last id of the piece, null for the last piece.
--
-- What was added before (`credited_us`) counts, so the same piece may be done twice; where a sweep has added more than the
-- pause came to, the rest is taken back.
WITH piece AS MATERIALIZED (
    SELECT d.operation_id, d.service, d.operation, d.waits
    FROM idempotency_gateway.delivery d
    WHERE d.operation_id >= $4::uuid
    ORDER BY d.operation_id
    LIMIT $5::bigint
), locked AS MATERIALIZED (
    SELECT o.operation_id
    FROM (
        SELECT y.operation_id FROM piece y
        WHERE y.waits = 'accepted' AND y.service = $2::text AND y.operation = $3::text
        ORDER BY y.operation_id
    ) y CROSS JOIN LATERAL (
        SELECT o.operation_id FROM idempotency_gateway.operation o WHERE o.operation_id = y.operation_id FOR NO KEY UPDATE
    ) o
), clock AS MATERIALIZED (
    -- Read the clock when every lock is held, so that it is later than every change that was waited for.
    SELECT {now} AS now_us FROM (SELECT count(*) FROM locked) locks
), moved AS (
    UPDATE idempotency_gateway.delivery d SET
        deliver_until_us = d.deliver_until_us
            + greatest(p.since_us, d.since_us, c.now_us) - greatest(p.since_us, d.since_us, d.credited_us),
        credited_us = greatest(p.since_us, d.since_us, c.now_us)
    FROM locked l CROSS JOIN clock c CROSS JOIN idempotency_gateway.pause p
    WHERE d.operation_id = l.operation_id AND d.waits = 'accepted' AND d.deliver_until_us > c.now_us
        AND p.service = $2::text AND p.operation = $3::text
    RETURNING d.operation_id, d.deliver_until_us
), due AS (
    UPDATE idempotency_gateway.operation o SET due_us = m.deliver_until_us FROM moved m WHERE o.operation_id = m.operation_id
)
SELECT (SELECT y.operation_id FROM piece y ORDER BY y.operation_id OFFSET $5::bigint - 1) AS last_id
FROM clock c

-- name: extend_paused
-- No row of the table: gives an hour more to accepted records of a paused name that would become dead letters within an hour.
-- Where something was done within a minute to end the pause, it is a minute: what that has come to keeps its time.
--
-- Locks the pauses, so that none begins to be ended meanwhile. Skips locked records until the next pass.
WITH start AS MATERIALIZED (
    SELECT {now} AS now_us
), held AS MATERIALIZED (
    SELECT p.service, p.operation, p.since_us, p.resumed_us FROM idempotency_gateway.pause p FOR SHARE
), paused AS MATERIALIZED (
    SELECT
        p.service, p.operation, p.since_us, s.now_us,
        CASE WHEN p.resumed_us > s.now_us - {pause_end_us} THEN {pause_end_us} ELSE {pause_step_us} END AS step_us
    FROM held p CROSS JOIN start s
), candidate AS MATERIALIZED (
    SELECT y.operation_id
    FROM paused p CROSS JOIN LATERAL (
        SELECT d.operation_id
        FROM idempotency_gateway.delivery d
        WHERE d.waits = 'accepted' AND d.service = p.service AND d.operation = p.operation
            AND d.deliver_until_us > p.now_us AND d.deliver_until_us <= p.now_us + p.step_us
        ORDER BY d.deliver_until_us
        LIMIT $2::bigint
    ) y
    LIMIT $2::bigint
), locked AS MATERIALIZED (
    SELECT o.operation_id
    FROM (SELECT y.operation_id FROM candidate y ORDER BY y.operation_id) y CROSS JOIN LATERAL (
        SELECT o.operation_id
        FROM idempotency_gateway.operation o
        WHERE o.operation_id = y.operation_id AND o.version BETWEEN {record_versions}
        FOR NO KEY UPDATE SKIP LOCKED
    ) o
), moved AS (
    UPDATE idempotency_gateway.delivery d SET
        deliver_until_us = d.deliver_until_us + p.step_us,
        credited_us = greatest(p.since_us, d.since_us, d.credited_us) + p.step_us
    FROM locked l CROSS JOIN paused p
    WHERE d.operation_id = l.operation_id AND p.service = d.service AND p.operation = d.operation AND d.waits = 'accepted'
        AND d.deliver_until_us > p.now_us AND d.deliver_until_us <= p.now_us + p.step_us
    RETURNING d.operation_id, d.deliver_until_us
), due AS (
    UPDATE idempotency_gateway.operation o SET due_us = m.deliver_until_us FROM moved m WHERE o.operation_id = m.operation_id
)
SELECT s.now_us, (SELECT count(*) FROM moved) AS moved FROM start s
