-- tombstone --collect--> absent: as `select_due`, the narrow ones
SELECT {record}, NULL
FROM operation AS o
WHERE kind IS NOT NULL AND remember_until_us / 60000000 <= ?2 / 60000000 AND remember_until_us <= ?2
    AND ?1 = 'tombstone' AND version BETWEEN {record_versions}
ORDER BY remember_until_us / 60000000
LIMIT ?3
