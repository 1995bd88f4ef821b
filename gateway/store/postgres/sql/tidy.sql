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
    SELECT a.*, o.operation_id IS NOT NULL AS is_needed
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
    SELECT r.*, coalesce(o.token = r.token AND o.state IN ('claimed', 'in_doubt'), false) AS is_needed
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
