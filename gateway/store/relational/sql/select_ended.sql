-- tombstone --collect--> absent: as `select_due`, the narrow ones
SELECT o.id FROM operation AS o
WHERE o.kind IS NOT NULL AND o.remember_until_us / 60000000 <= CAST(?2 AS BIGINT) / 60000000 AND o.remember_until_us <= ?2
    AND ?1 = 'tombstone' AND o.version BETWEEN {record_versions}
ORDER BY o.remember_until_us / 60000000
LIMIT ?3
