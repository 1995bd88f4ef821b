-- name: select_lapsed
-- claimed --lapse--> in_doubt, and leases that a clock left which was set back: claims of which that may be, locked.
--
-- Looks at the claims in the order of their tokens from where the last walk ended, and at those that were renewed. Nothing
-- comes back where another gateway sweeps. Who is locked is left for the next pass.
WITH start AS MATERIALIZED (
    SELECT u.passed_token, {now} AS now_us
    FROM (SELECT pg_try_advisory_xact_lock({sweep_lock}) AS is_ours) turn JOIN idempotency_gateway.upkeep u ON turn.is_ours
), candidate AS MATERIALIZED (
    SELECT y.operation_id
    FROM start s CROSS JOIN LATERAL (
        SELECT o.operation_id, o.state, o.lease_until_us, o.version
        FROM idempotency_gateway.operation o
        WHERE o.token > s.passed_token
        ORDER BY o.token
        LIMIT $3::bigint
    ) y
    WHERE y.state = 'claimed' AND y.version = {record_version}
        AND (y.lease_until_us <= s.now_us OR y.lease_until_us > s.now_us + {lease_us_max})
    UNION
    SELECT o.operation_id
    FROM start s CROSS JOIN LATERAL (
        SELECT o.operation_id, o.lease_until_us
        FROM idempotency_gateway.operation o
        WHERE o.attention_us IS NOT NULL AND o.state = 'claimed' AND o.version = {record_version}
    ) o
    WHERE o.lease_until_us <= s.now_us OR o.lease_until_us > s.now_us + {lease_us_max}
    LIMIT $2::bigint
), locked AS MATERIALIZED (
    SELECT {row}
    FROM (SELECT d.operation_id FROM candidate d ORDER BY d.operation_id) d CROSS JOIN LATERAL (
        SELECT {row}
        FROM idempotency_gateway.operation o
        WHERE o.operation_id = d.operation_id AND o.state = 'claimed' AND o.version = {record_version}
        FOR NO KEY UPDATE SKIP LOCKED
    ) o
)
SELECT s.now_us, {row} FROM start s LEFT JOIN locked o ON true

-- name: select_due
-- completed --retire--> tombstone, released | tombstone --collect--> absent, and a lapse that the walk did not see: what is
-- due, locked.
--
-- A state that time alone does not end stays, whatever is written as the time at which it is due. `due_us` may be late by
-- the slack, so the scan goes that much further. Nothing comes back where another gateway sweeps. Who is locked is left for
-- the next pass. A retired response stays where it is until its partition leaves: nobody reads it any more.
WITH start AS MATERIALIZED (
    SELECT {now} AS now_us
    FROM (SELECT pg_try_advisory_xact_lock({sweep_lock}) AS is_ours) turn
    WHERE turn.is_ours
), locked AS MATERIALIZED (
    SELECT {row}
    FROM idempotency_gateway.operation o
    WHERE o.due_us <= (SELECT now_us FROM start) + {due_slack_us}
        AND o.version = {record_version}
        AND {due_us(o)} <= (SELECT now_us FROM start)
    ORDER BY o.due_us
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED
)
SELECT s.now_us, {row} FROM start s LEFT JOIN locked o ON true

-- name: pass
-- No row of the table: the walk for lapsed claims goes on.
--
-- It ends before the first claim that must be looked at again, and before what may still be followed by a lower token of a
-- statement that has not committed: after the last token of which that is known ($3). When a claim was made does not tell,
-- for the clock may have been set since. Nor does it wait for ever for a claim that a newer program wrote, and that only
-- such a one may end: what is due is looked for by another way, too.
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
            -- A newer program has as long for its own as the longest lease.
            AND (
                y.version = {record_version}
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
-- No row of the table: audits whose time and record are gone, recovery leases of what is in doubt no longer, and witnesses
-- that nobody has raised between two looks.
--
-- What is still needed is looked at again later.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock({sweep_lock}) AS mine, set_config('synchronous_commit', 'off', true)
), clock AS MATERIALIZED (
    SELECT {now} AS now_us
), due_audit AS MATERIALIZED (
    SELECT a.operation_id, a.entry
    FROM idempotency_gateway.audit a
    WHERE (SELECT mine FROM turn) AND a.keep_until_us <= (SELECT now_us FROM clock)
    ORDER BY a.keep_until_us
    LIMIT $2::bigint
), old_audit AS MATERIALIZED (
    SELECT a.operation_id, a.entry, o.operation_id IS NOT NULL AS is_needed
    FROM due_audit a LEFT JOIN LATERAL (
        SELECT o.operation_id FROM idempotency_gateway.operation o WHERE o.operation_id = a.operation_id LIMIT 1
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
    WHERE (SELECT mine FROM turn) AND r.check_us <= (SELECT now_us FROM clock)
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
    -- Under another token it is somebody else's by now.
    DELETE FROM idempotency_gateway.recovery r
    USING old_recovery d
    WHERE r.operation_id = d.operation_id AND r.token = d.token AND NOT d.is_needed
), due_witness AS MATERIALIZED (
    SELECT w.link
    FROM idempotency_gateway.witness w
    WHERE (SELECT mine FROM turn) AND w.check_us <= (SELECT now_us FROM clock)
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
        (SELECT count(*) FROM old_audit), (SELECT count(*) FROM old_recovery), (SELECT count(*) FROM due_witness)
    ) AS looked_at
