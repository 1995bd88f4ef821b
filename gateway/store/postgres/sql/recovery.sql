-- name: recover
-- No row of the table: the recovery lease of an operation in doubt, for one at a time. The record stays as it is.
--
-- A claimed record whose lease has lapsed is in doubt. Concurrent calls are serialised by the row's lock, and each sees what
-- the one before wrote. A recovery lease under an older token is void.
WITH clock AS MATERIALIZED (
    -- No flush at commit: if a crash loses the lease, it is granted twice, which costs one more probe.
    SELECT {now} AS now_us, set_config('synchronous_commit', 'off', true)
)
INSERT INTO idempotency_gateway.recovery AS r (
    operation_id, token, held_until_us, put_off_until_us, check_us, tries, background_tries, asked_us, finding
)
SELECT
    o.operation_id, o.token, c.now_us + $4::bigint, 0, c.now_us + {recovery_check_us}, 1,
    CASE WHEN $5::boolean THEN 0 ELSE 1 END, 0, ''
FROM clock c CROSS JOIN idempotency_gateway.operation o
WHERE o.operation_id = $2::uuid AND o.token = $3::bigint AND o.version BETWEEN {record_versions}
    AND {is_in_doubt(o, c)}
ON CONFLICT (operation_id) DO UPDATE SET
    token = excluded.token,
    held_until_us = excluded.held_until_us,
    put_off_until_us = CASE WHEN r.token = excluded.token THEN r.put_off_until_us ELSE 0 END,
    tries = CASE WHEN r.token = excluded.token THEN r.tries + 1 ELSE 1 END,
    -- Urgent probes do not lengthen the pause.
    background_tries = excluded.background_tries + CASE WHEN r.token = excluded.token THEN r.background_tries ELSE 0 END,
    asked_us = CASE WHEN r.token = excluded.token THEN r.asked_us ELSE 0 END,
    finding = CASE WHEN r.token = excluded.token THEN r.finding ELSE '' END
WHERE r.token < excluded.token
    OR r.token = excluded.token
        -- A time in the future is from before the clock was set back; ignore it.
        AND (
            r.held_until_us <= (SELECT now_us FROM clock)
            OR r.held_until_us > (SELECT now_us FROM clock) + {recovery_lease_us_max}
        )
        AND NOT (SELECT now_us FROM clock) BETWEEN r.asked_us AND r.asked_us + {probe_floor_us} - 1
        AND ($5::boolean OR NOT (SELECT now_us FROM clock) BETWEEN r.asked_us AND r.put_off_until_us - 1)
RETURNING r.tries, r.background_tries

-- name: put_off
-- No row of the table: the last holder returns the recovery lease.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us, set_config('synchronous_commit', 'off', true)
)
UPDATE idempotency_gateway.recovery r SET
    held_until_us = 0,
    put_off_until_us = c.now_us + $5::bigint,
    asked_us = c.now_us,
    finding = $6::text
FROM clock c
WHERE r.operation_id = $2::uuid AND r.token = $3::bigint AND r.tries = $4::integer

-- name: recovery
-- No row of the table: the recovery lease of an operation, and the result of its probes.
SELECT r.token, r.tries, r.held_until_us, r.put_off_until_us, r.asked_us, r.finding
FROM idempotency_gateway.recovery r
WHERE r.operation_id = $1::uuid

-- name: latest_audits
-- No row of the table: the last audits before a number, latest first.
SELECT a.entry, a.operation_id, a.at_us, a.event, a.token, a.who, a.why
FROM idempotency_gateway.audit a
WHERE a.entry < $1::bigint
ORDER BY a.entry DESC
LIMIT $2::bigint

-- name: audits
-- No row of the table: the last audits of an operation, oldest first.
SELECT a.at_us, a.event, a.token, a.who, a.why
FROM (
    SELECT u.entry, u.at_us, u.event, u.token, u.who, u.why
    FROM idempotency_gateway.audit u
    WHERE u.operation_id = $1::uuid
    ORDER BY u.entry DESC
    LIMIT $2::bigint
) a
ORDER BY a.entry
