-- every row: the records that have something that may not be sealed with the current key, or is clear
SELECT id
FROM operation
WHERE id > ?1
    AND (
        sealed_by IS NOT ?2
        OR substr(key, 1, 1) <> char(1)
        OR (request <> '' AND instr(request, char(1)) = 0)
        OR substr(probe_target, 1, 1) <> x'01'
        OR substr(resource, 1, 1) <> x'01'
        OR instr(substr(headers, 1, 32), x'0168656164657273') = 0
    )
ORDER BY id
LIMIT ?3
