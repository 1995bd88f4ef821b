-- no row: which memory this is
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
