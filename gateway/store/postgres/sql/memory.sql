-- name: epoch
-- No row of the table: which memory this is
--
-- A copy has the identity of its original: the server and the database tell them apart, and the timeline, which comes last,
-- what was there before a promotion. It is read off the name of the segment that is being written, which is right from the
-- first moment.
SELECT
    e.identity::text || '/' || s.system_identifier || '/' || d.oid || '/'
        || left(pg_walfile_name(pg_current_wal_lsn()), 8) AS identity,
    t.last_value AS token,
    e.memo,
    e.generation,
    {now} AS now_us,
    -- Of the links that were asked for.
    ARRAY(SELECT w.link FROM idempotency_gateway.witness w WHERE w.link = ANY($2::uuid[]) ORDER BY w.link) AS links,
    ARRAY(SELECT w.number FROM idempotency_gateway.witness w WHERE w.link = ANY($2::uuid[]) ORDER BY w.link) AS numbers
FROM idempotency_gateway.epoch e, idempotency_gateway.token t, pg_control_system() s, pg_database d
WHERE d.datname = current_database()

-- name: begin_epoch
-- No row of the table: what gateways wrote down about memories that were lost; no token up to this one is given to anybody
--
-- Others draw tokens meanwhile. So the sequence is never set to what they may be beyond already: up to there it is drawn from,
-- which cannot go back, and only where that is far ahead it is set. The caller holds the lock for it, or two of these
-- would each set what they saw.
WITH advanced AS MATERIALIZED (
    SELECT CASE
        WHEN $2::bigint - t.last_value > {tokens_drawn_max} THEN setval('idempotency_gateway.token', $2::bigint)
        -- One more, for a sequence that nobody has drawn from is at its first token as well.
        ELSE (SELECT max(nextval('idempotency_gateway.token')) FROM generate_series(t.last_value, $2::bigint))
    END AS token
    FROM idempotency_gateway.token t
    WHERE t.last_value <= $2::bigint
)
UPDATE idempotency_gateway.epoch SET memo = $1 WHERE (SELECT count(token) FROM advanced) >= 0

-- name: begin_generation
-- No row of the table: no copy from before a purge or an erasure counts
UPDATE idempotency_gateway.epoch SET generation = gen_random_uuid()::text

-- name: add_witness
-- No row of the table: a link gets its witness
INSERT INTO idempotency_gateway.witness (link, number, kept_number, check_us)
SELECT $2::uuid, 1, 0, {now} + {witness_keep_us}
RETURNING number, {now} AS now_us

-- name: raise_witness
-- No row of the table: the witness of a link is raised, unless a statement of a connection that was lost is still at it
UPDATE idempotency_gateway.witness w SET number = w.number + 1
WHERE w.link = (SELECT v.link FROM idempotency_gateway.witness v WHERE v.link = $2::uuid FOR NO KEY UPDATE SKIP LOCKED)
RETURNING w.number, {now} AS now_us
