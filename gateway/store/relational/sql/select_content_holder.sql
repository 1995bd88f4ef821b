-- no row of the table: another operation that holds a content (`lifecycle.holds_content`), the one that claimed it first
SELECT c.id
FROM content AS c JOIN operation AS o ON o.id = c.id AND o.fingerprint_digest = {fingerprint of c}
WHERE c.digest = ?1 AND c.id <> ?2
    AND (
        o.state NOT IN ('released', 'completed', 'tombstone')
        OR o.state <> 'released' AND c.until_us > ?3 AND {greatest}(coalesce(o.replay_until_us, 0), o.remember_until_us) > ?3
    )
ORDER BY c.until_us, c.id
LIMIT 1
