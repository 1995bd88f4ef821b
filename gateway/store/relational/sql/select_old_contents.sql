-- no row of the table: contents to check, and whether their operation may still have an effect
SELECT digest, id, EXISTS (
    SELECT 1 FROM operation AS o
    WHERE o.id = content.id AND o.fingerprint_digest = content.fingerprint
        AND o.state NOT IN ('released', 'completed', 'tombstone')
)
FROM content
WHERE check_us <= ?
ORDER BY check_us
LIMIT ?
