-- tombstone: what many have in common, while there are not too many kinds
INSERT INTO kind ({kind})
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11 WHERE (SELECT count(*) FROM kind) < {kinds_max}
ON CONFLICT (kind) DO NOTHING
