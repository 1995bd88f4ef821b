-- no row of the table: the operations that hold contents (`lifecycle.holds_content`), and until when
SELECT c.until_us, c.id, c.digest
FROM content AS c JOIN operation AS o ON o.id = c.id AND o.fingerprint_digest = {fingerprint of c}
WHERE c.digest {among}
    AND (
        o.state NOT IN ('released', 'completed', 'tombstone')
        OR coalesce(o.state, 'tombstone') <> 'released' AND c.until_us > ?2 AND {greatest}(coalesce(o.replay_until_us, 0), o.remember_until_us) > ?2
    )
