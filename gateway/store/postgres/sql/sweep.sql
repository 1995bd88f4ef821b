-- name: is_due
-- No row of the table: whether a sweep would find anything. Where a name is paused, it always looks.
--
-- No EXISTS: for that, a planner who believes that a table is small may read all of it.
WITH start AS MATERIALIZED (
    SELECT u.passed_token, {now} AS now_us FROM idempotency_gateway.upkeep u
)
SELECT coalesce(
    (SELECT true FROM idempotency_gateway.operation o WHERE o.token > s.passed_token ORDER BY o.token LIMIT 1),
    (
        SELECT true FROM idempotency_gateway.operation o
        WHERE o.attention_us IS NOT NULL
            AND (o.state = 'claimed' OR o.state = 'in_doubt' AND o.lease_until_us > s.now_us + o.lease_us)
        ORDER BY o.operation_id LIMIT 1
    ),
    (
        SELECT true FROM idempotency_gateway.operation o
        WHERE o.due_us <= s.now_us + {due_slack_us} AND (o.state = 'tombstone' OR {due_us(o)} <= s.now_us)
        ORDER BY o.due_us LIMIT 1
    ),
    (
        SELECT true FROM idempotency_gateway.tombstone t
        WHERE (t.completed_us / 1000000 + t.kept_s) / 60 <= s.now_us / 60000000
        ORDER BY (t.completed_us / 1000000 + t.kept_s) / 60 LIMIT 1
    ),
    (SELECT true FROM idempotency_gateway.pause p LIMIT 1),
    (SELECT true FROM idempotency_gateway.audit a WHERE a.keep_until_us <= s.now_us ORDER BY a.keep_until_us LIMIT 1),
    (SELECT true FROM idempotency_gateway.recovery r WHERE r.check_us <= s.now_us ORDER BY r.check_us LIMIT 1),
    (SELECT true FROM idempotency_gateway.content h WHERE h.check_us <= s.now_us ORDER BY h.check_us LIMIT 1),
    (SELECT true FROM idempotency_gateway.witness w WHERE w.check_us <= s.now_us ORDER BY w.check_us LIMIT 1),
    false
) AS is_due
FROM start s

-- name: select_lapsed
-- claimed --lapse--> in_doubt, and leases that begin in the future, because the clock was set back: lock the candidates.
--
-- Reads the claims in the order of their tokens from where the last walk ended, and those that were renewed. Skips locked
-- records until the next pass.
WITH start AS MATERIALIZED (
    SELECT u.passed_token, {now} AS now_us FROM idempotency_gateway.upkeep u
), candidate AS MATERIALIZED (
    SELECT y.operation_id
    FROM start s CROSS JOIN LATERAL (
        SELECT o.operation_id, o.state, o.lease_until_us, o.lease_us, o.version
        FROM idempotency_gateway.operation o
        WHERE o.token > s.passed_token
        ORDER BY o.token
        LIMIT $3::bigint
    ) y
    WHERE y.state = 'claimed' AND y.version BETWEEN {record_versions}
        AND (y.lease_until_us <= s.now_us OR y.lease_until_us > s.now_us + y.lease_us)
    UNION
    SELECT o.operation_id
    FROM start s CROSS JOIN LATERAL (
        SELECT o.operation_id, o.state, o.lease_until_us, o.lease_us
        FROM idempotency_gateway.operation o
        WHERE o.attention_us IS NOT NULL AND o.state IN ('claimed', 'in_doubt') AND o.version BETWEEN {record_versions}
    ) o
    WHERE o.state = 'claimed' AND o.lease_until_us <= s.now_us OR o.lease_until_us > s.now_us + o.lease_us
    LIMIT $2::bigint
), locked AS MATERIALIZED (
    SELECT {row}
    FROM (SELECT d.operation_id FROM candidate d ORDER BY d.operation_id) d CROSS JOIN LATERAL (
        SELECT {row}
        FROM idempotency_gateway.operation o
        WHERE o.operation_id = d.operation_id AND o.state IN ('claimed', 'in_doubt')
            AND o.version BETWEEN {record_versions}
        FOR NO KEY UPDATE SKIP LOCKED
    ) o
)
SELECT s.now_us, {row} FROM start s LEFT JOIN locked o ON true

-- name: select_due
-- accepted --expire--> dead_letter, completed --retire--> tombstone, released | tombstone --collect--> absent, and a lapse that
-- the walk missed: lock the due records.
--
-- A tombstone that is still here is looked at to move it. A state that time alone does not end stays, whatever its `due_us`.
-- `due_us` may be late by the slack, so the scan goes that much further. Skips locked records until the next pass. A retired
-- response stays until its partition is dropped: nothing reads it any more.
WITH start AS MATERIALIZED (
    SELECT {now} AS now_us
), locked AS MATERIALIZED (
    SELECT {row}
    FROM idempotency_gateway.operation o
    WHERE o.due_us <= (SELECT now_us FROM start) + {due_slack_us}
        AND o.version BETWEEN {record_versions}
        AND (o.state = 'tombstone' OR {due_us(o)} <= (SELECT now_us FROM start))
    ORDER BY o.due_us
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED
)
SELECT s.now_us, {row} FROM start s LEFT JOIN locked o ON true

-- name: pass
-- No row of the table: advance the walk for lapsed claims.
--
-- The walk stops before the first claim that must be checked again. It also stops after the last token up to which every
-- statement is known to have committed ($3), because a lower token may still appear behind a higher one. The time of a claim
-- cannot show that, because the clock may have been set. The walk does not wait for ever for a claim of a newer program,
-- which only such a program may end: `select_due` finds it, too.
WITH start AS MATERIALIZED (
    SELECT u.passed_token, {now} AS now_us FROM idempotency_gateway.upkeep u
), young AS MATERIALIZED (
    SELECT y.token, y.state, y.attention_us, y.version, y.lease_until_us
    FROM start s CROSS JOIN LATERAL (
        SELECT o.token, o.state, o.attention_us, o.version, o.lease_until_us
        FROM idempotency_gateway.operation o
        WHERE o.token > s.passed_token
        ORDER BY o.token
        LIMIT $2::bigint
    ) y
), held AS MATERIALIZED (
    SELECT coalesce(min(y.token), 9223372036854775807) AS token
    FROM young y CROSS JOIN start s
    WHERE y.token > $3::bigint
        OR y.state = 'claimed' AND y.attention_us IS NULL
            -- A newer program has the time of the longest lease to sweep its own claims.
            AND (
                y.version BETWEEN {record_versions}
                OR y.lease_until_us BETWEEN s.now_us - {lease_us_max} AND s.now_us + {lease_us_max}
            )
), moved AS (
    UPDATE idempotency_gateway.upkeep u SET passed_token = p.token
    FROM (SELECT max(y.token) AS token FROM young y CROSS JOIN held h WHERE y.token < h.token) p
    WHERE p.token > u.passed_token
    RETURNING u.passed_token
)
SELECT
    (SELECT count(*) FROM young) >= $2::bigint AND EXISTS (SELECT FROM moved) AS is_more,
    (SELECT t.last_value FROM idempotency_gateway.token t) AS drawn_token

-- name: tidy
-- No row of the table: delete expired audits whose record is gone, recovery leases whose doubt is over, contents that their
-- operation does not hold any more, and witnesses that were not raised between two checks.
--
-- What is still needed is checked again later. Two sweeps may do this at once: each row is deleted or kept by one of them.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us, set_config('synchronous_commit', 'off', true)
), due_audit AS MATERIALIZED (
    SELECT a.operation_id, a.entry
    FROM idempotency_gateway.audit a
    WHERE a.keep_until_us <= (SELECT now_us FROM clock)
    ORDER BY a.keep_until_us
    LIMIT $2::bigint
), old_audit AS MATERIALIZED (
    SELECT a.operation_id, a.entry, o.operation_id IS NOT NULL AS is_needed
    FROM due_audit a LEFT JOIN LATERAL (
        SELECT o.operation_id FROM idempotency_gateway.remembered o WHERE o.operation_id = a.operation_id LIMIT 1
    ) o ON true
), kept_audit AS (
    UPDATE idempotency_gateway.audit a SET keep_until_us = c.now_us + {audit_keep_us}
    FROM old_audit d CROSS JOIN clock c
    WHERE a.operation_id = d.operation_id AND a.entry = d.entry AND d.is_needed
), dropped_audit AS (
    DELETE FROM idempotency_gateway.audit a
    USING old_audit d
    WHERE a.operation_id = d.operation_id AND a.entry = d.entry AND NOT d.is_needed
), due_recovery AS MATERIALIZED (
    SELECT r.operation_id, r.token
    FROM idempotency_gateway.recovery r
    WHERE r.check_us <= (SELECT now_us FROM clock)
    ORDER BY r.check_us
    LIMIT $2::bigint
), old_recovery AS MATERIALIZED (
    SELECT r.operation_id, r.token, coalesce(o.token = r.token AND o.state IN ('claimed', 'in_doubt'), false) AS is_needed
    FROM due_recovery r LEFT JOIN LATERAL (
        SELECT o.token, o.state FROM idempotency_gateway.operation o WHERE o.operation_id = r.operation_id LIMIT 1
    ) o ON true
), kept_recovery AS (
    UPDATE idempotency_gateway.recovery r SET check_us = c.now_us + {recovery_check_us}
    FROM old_recovery d CROSS JOIN clock c
    WHERE r.operation_id = d.operation_id AND d.is_needed
), dropped_recovery AS (
    -- Under another token it is a new lease by now.
    DELETE FROM idempotency_gateway.recovery r
    USING old_recovery d
    WHERE r.operation_id = d.operation_id AND r.token = d.token AND NOT d.is_needed
), due_content AS MATERIALIZED (
    SELECT h.digest, h.operation_id, h.check_us, h.fingerprint
    FROM idempotency_gateway.content h
    WHERE h.check_us <= (SELECT now_us FROM clock)
    ORDER BY h.check_us
    LIMIT $2::bigint
), old_content AS MATERIALIZED (
    SELECT
        h.digest, h.operation_id, h.check_us,
        coalesce(o.digest = h.fingerprint AND o.state NOT IN ('released', 'completed', 'tombstone'), false) AS is_needed
    FROM due_content h LEFT JOIN LATERAL (
        SELECT o.digest, o.state FROM idempotency_gateway.operation o WHERE o.operation_id = h.operation_id LIMIT 1
    ) o ON true
), kept_content AS (
    UPDATE idempotency_gateway.content h SET check_us = c.now_us + {recovery_check_us}
    FROM old_content d CROSS JOIN clock c
    WHERE h.digest = d.digest AND h.operation_id = d.operation_id AND h.check_us = d.check_us AND d.is_needed
), dropped_content AS (
    -- With another time, its operation claimed it again.
    DELETE FROM idempotency_gateway.content h
    USING old_content d
    WHERE h.digest = d.digest AND h.operation_id = d.operation_id AND h.check_us = d.check_us AND NOT d.is_needed
), due_witness AS MATERIALIZED (
    SELECT w.link
    FROM idempotency_gateway.witness w
    WHERE w.check_us <= (SELECT now_us FROM clock)
    ORDER BY w.check_us
    LIMIT $2::bigint
), kept_witness AS (
    UPDATE idempotency_gateway.witness w SET kept_number = w.number, check_us = c.now_us + {witness_keep_us}
    FROM due_witness d CROSS JOIN clock c
    WHERE w.link = d.link AND w.number <> w.kept_number
), dropped_witness AS (
    DELETE FROM idempotency_gateway.witness w
    USING due_witness d
    WHERE w.link = d.link AND w.number = w.kept_number
)
SELECT
    greatest(
        (SELECT count(*) FROM old_audit), (SELECT count(*) FROM old_recovery), (SELECT count(*) FROM old_content),
        (SELECT count(*) FROM due_witness)
    ) AS looked_at
