-- No row of the table: the last of what was done to an operation, the oldest first.
SELECT a.at_us, a.event, a.token, a.who, a.why
FROM (
    SELECT * FROM idempotency_gateway.audit WHERE operation_id = $1::uuid ORDER BY entry DESC LIMIT $2::bigint
) a
ORDER BY a.entry
