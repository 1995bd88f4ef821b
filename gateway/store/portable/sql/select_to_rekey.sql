-- every row: the records that have something that may not be sealed with the current key, or is clear
SELECT o.id
FROM operation AS o
WHERE o.id > ?1
    AND (
        o.sealed_by IS DISTINCT FROM ?2
        OR substr(o.key, 1, 1) <> E'\x01'
        OR (o.request <> '' AND strpos(o.request, E'\x01') = 0)
        OR substr(o.probe_target, 1, 1) <> '\x01'::BYTEA
        OR substr(o.resource, 1, 1) <> '\x01'::BYTEA
        OR position('\x0168656164657273'::BYTEA IN substr(o.headers, 1, 32)) = 0
    )
ORDER BY o.id
LIMIT ?3
