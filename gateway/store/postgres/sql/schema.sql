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
-- The days without a partition, for responses with these windows, and all up to $3, that are recorded now or in the next $4 days.
-- A window that is a little longer than so many days may have coarser ones.
SELECT wanted.day
FROM (
    SELECT DISTINCT idempotency_gateway.drop_day({now} + a.ahead * 86400000000, w.replay_us) AS day
    FROM (
        SELECT unnest($2::bigint[] || $3::bigint) AS replay_us
        UNION ALL
        SELECT d.us + more.us
        FROM generate_series(0, $3::bigint, 86400000000) AS d (us) CROSS JOIN (VALUES (0), (1)) AS more (us)
        WHERE d.us + more.us <= $3
    ) AS w CROSS JOIN generate_series(0, $4::bigint) AS a (ahead)
    WHERE w.replay_us IS NOT NULL
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

-- name: schema_migrations
-- The table of the migrations that were applied.
CREATE TABLE IF NOT EXISTS idempotency_gateway.migration (
    version INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    checksum TEXT NOT NULL DEFAULT '',
    applied_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
)

-- name: schema_applied
-- The migrations that were applied, also where the table has no checksums.
SELECT version, coalesce(to_jsonb(m) ->> 'checksum', '') AS checksum FROM idempotency_gateway.migration AS m

-- name: schema_note
-- A migration was applied.
INSERT INTO idempotency_gateway.migration (version, name, checksum) VALUES ($1, $2, $3) ON CONFLICT (version) DO NOTHING

-- name: schema_may_migrate
-- Whether this role may make the schema, or owns it.
SELECT coalesce(
    (SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = 'idempotency_gateway'),
    has_database_privilege(current_database(), 'CREATE')
) AS may

-- name: schema_grant
-- What a gateway needs, in every dialect.
GRANT USAGE ON SCHEMA idempotency_gateway TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA idempotency_gateway TO {role};

-- name: schema_grant_more
-- With these, exactly what `lacking` checks.
REVOKE INSERT, UPDATE, DELETE ON idempotency_gateway.migration FROM {role};
GRANT SELECT, UPDATE ON SEQUENCE idempotency_gateway.token TO {role};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA idempotency_gateway TO {role}

-- name: schema_greeting
-- What a server says of itself.
SELECT
    current_setting('server_version_num')::integer / 10000 AS major,
    'PostgreSQL ' || current_setting('server_version') AS version,
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names') AS standbys,
    coalesce(current_setting('in_hot_standby', true) = 'on', false) AS in_recovery,
    current_setting('transaction_read_only') = 'on' AS read_only,
    to_regclass('idempotency_gateway.epoch') IS NOT NULL AS exists

-- name: schema_greeting_elsewhere
-- The same of an engine that has not all these settings.
SELECT
    current_setting('transaction_read_only') = 'on' AS read_only,
    to_regclass('idempotency_gateway.epoch') IS NOT NULL AS exists
