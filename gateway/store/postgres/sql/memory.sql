-- name: epoch
-- No row of the table: which memory this is, and the witnesses of the requested links
--
-- A copy has the identity of its original. The server and the database distinguish them, and the timeline, which comes last,
-- the time before and after a promotion. It is read from the name of the current WAL segment, which is right from the first
-- moment after the promotion. `parent` is the memory that this one was before a promotion that nobody has accepted. What the
-- server does not say is 0. It stays that, also where it is said later: otherwise the memory would become another one.
WITH current AS MATERIALIZED (
    SELECT
        CASE WHEN e.system <> '' THEN idempotency_gateway.server_system() END AS system,
        CASE WHEN e.timeline <> '' THEN idempotency_gateway.server_timeline() END AS timeline
    FROM idempotency_gateway.epoch e
), named AS MATERIALIZED (
    SELECT
        format('%s/%s/%s/', e.identity, coalesce(c.system, '0'), d.oid) AS lineage,
        coalesce(c.timeline, '00000000') AS timeline
    FROM idempotency_gateway.epoch e, current c, pg_database d
    WHERE d.datname = current_database()
)
SELECT
    n.lineage || n.timeline AS identity,
    CASE WHEN e.timeline NOT IN ('', n.timeline) THEN n.lineage || e.timeline ELSE '' END AS parent,
    t.last_value AS token,
    e.memo,
    e.generation,
    e.level,
    {now} AS now_us,
    w.link,
    w.number
FROM idempotency_gateway.epoch e CROSS JOIN idempotency_gateway.token t CROSS JOIN named n
LEFT JOIN idempotency_gateway.witness w ON w.link = ANY($2::bytea[])

-- name: begin_epoch
-- No row of the table: replaces the memo about lost memories, which also covers a promotion; no token up to this one is drawn
-- any more
--
-- Other gateways draw tokens meanwhile, so the sequence must not be set to a value that they may have passed: that would set
-- it back. Up to a near value, draw tokens instead; set the sequence only to a value far ahead. The caller holds an advisory
-- lock, or two of these would each set what they saw.
WITH advanced AS MATERIALIZED (
    SELECT CASE
        WHEN $2::bigint - t.last_value > {tokens_drawn_max} THEN setval('idempotency_gateway.token', $2::bigint)
        -- Draw one more, because a fresh sequence also shows its first token as `last_value`.
        ELSE (SELECT max(nextval('idempotency_gateway.token')) FROM generate_series(t.last_value, $2::bigint))
    END AS token
    FROM idempotency_gateway.token t
    WHERE t.last_value <= $2::bigint
)
UPDATE idempotency_gateway.epoch
SET memo = $1, timeline = CASE WHEN timeline <> '' THEN coalesce(idempotency_gateway.server_timeline(), '') ELSE '' END
WHERE (SELECT count(token) FROM advanced) >= 0

-- name: raise_witness
-- No row of the table: raise the witness of a link, unless a statement of a lost connection still has it locked
UPDATE idempotency_gateway.witness w SET number = w.number + 1
WHERE w.link = (SELECT v.link FROM idempotency_gateway.witness v WHERE v.link = $2::bytea FOR NO KEY UPDATE SKIP LOCKED)
RETURNING {now} AS now_us, w.number
