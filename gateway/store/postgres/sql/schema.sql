-- name: lacking
-- The rights that this role lacks in the schema, and the schema's owner.
SELECT quote_ident(current_user) AS role, quote_ident(pg_get_userbyid(n.nspowner)) AS owner, lacking.what
FROM pg_namespace n CROSS JOIN LATERAL (
    SELECT p.privilege || ' on ' || c.relname
    FROM pg_class c CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p (privilege)
    WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p')
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
