-- No row of the table: the recovery lease is given back by whoever had it last.
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
