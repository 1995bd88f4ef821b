-- no row: the witness of a link is raised, unless a statement of a connection that was lost is still at it
UPDATE idempotency_gateway.witness w SET number = w.number + 1
WHERE w.link = (SELECT v.link FROM idempotency_gateway.witness v WHERE v.link = $2::uuid FOR NO KEY UPDATE SKIP LOCKED)
RETURNING w.number, {now} AS now_us
