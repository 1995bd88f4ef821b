-- no row of the table: contents to check, and whether their operation may still have an effect
SELECT c.digest, c.id, EXISTS (
    SELECT 1 FROM operation AS o
    WHERE o.id = c.id AND o.fingerprint_digest = c.fingerprint
        AND o.state NOT IN ('released', 'completed', 'tombstone')
)
FROM content AS c
WHERE c.check_us <= ?
ORDER BY c.check_us
LIMIT ?
