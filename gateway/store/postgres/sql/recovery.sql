-- No row of the table: what is kept of the probes of an operation.
SELECT r.token, r.tries, r.held_until_us, r.put_off_until_us, r.asked_us, r.finding
FROM idempotency_gateway.recovery r
WHERE r.operation_id = $1::uuid
