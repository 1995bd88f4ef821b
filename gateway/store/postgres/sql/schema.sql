-- name: lacking
-- The rights that this role lacks in the schema, and the schema's owner. Partitions are reached through their table.
SELECT quote_ident(current_user) AS role, quote_ident(pg_get_userbyid(n.nspowner)) AS owner, lacking.what
FROM pg_namespace n CROSS JOIN LATERAL (
    SELECT p.privilege || ' on ' || c.relname
    FROM pg_class c CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p (privilege)
    WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p') AND c.relname !~ '^response_[0-9]+$'
        AND (c.relname <> 'migration' OR p.privilege = 'SELECT') AND NOT has_table_privilege(c.oid, p.privilege)
    UNION ALL
    SELECT p.privilege || ' on ' || c.relname
    FROM pg_class c CROSS JOIN unnest(ARRAY['SELECT', 'UPDATE']) AS p (privilege)
    WHERE c.relnamespace = n.oid AND c.relkind = 'S' AND c.relname = 'token'
        AND NOT has_sequence_privilege(c.oid, p.privilege)
    UNION ALL
    SELECT 'EXECUTE on ' || f.proname
    FROM pg_proc f
    WHERE f.pronamespace = n.oid AND NOT has_function_privilege(f.oid, 'EXECUTE')
) AS lacking (what)
WHERE n.nspname = 'idempotency_gateway'
ORDER BY lacking.what

-- name: missing_days
-- The days without a partition, for responses with these windows that are recorded now or in the next $3 days.
SELECT wanted.day
FROM (
    SELECT DISTINCT idempotency_gateway.drop_day({now} + a.ahead * 86400000000, w.replay_us) AS day
    FROM unnest($2::bigint[]) AS w (replay_us) CROSS JOIN generate_series(0, $3::bigint) AS a (ahead)
) wanted
WHERE NOT EXISTS (
    SELECT
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'idempotency_gateway.response'::regclass AND c.relname = format('response_%s', wanted.day)
)
ORDER BY wanted.day

-- name: longest_window
-- The longest replay window of all gateways that are known.
SELECT coalesce(max(g.replay_us), 0) AS longest_us FROM idempotency_gateway.gateway g

-- name: past_days
-- The days whose responses have all expired and that still have a table.
SELECT d.day
FROM (
    SELECT replace(c.relname, 'response_', '')::integer AS day
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'idempotency_gateway' AND c.relkind = 'r' AND c.relname ~ '^response_[0-9]+$'
) d
WHERE d.day <= {now} / 86400000000
ORDER BY d.day
