-- no row: a link gets its witness
INSERT INTO idempotency_gateway.witness (link, number, kept_number, check_us)
SELECT $2::uuid, 1, 0, {now} + {witness_keep_us}
RETURNING number, {now} AS now_us
