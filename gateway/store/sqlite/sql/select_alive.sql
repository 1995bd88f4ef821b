-- no row of the table: the keys of an operation name that are remembered, settled, with what their ids are derived from and
-- until when (NULL: until resolved). It reads every record between the two rows; it is asked only at a start with another
-- configuration.
SELECT id, scope_digest, key_digest,
    CASE
        WHEN state IN ('claimed', 'in_doubt') THEN NULL
        WHEN state = 'completed' THEN max(replay_until_us, remember_until_us)
        ELSE remember_until_us
    END
FROM operation
WHERE row > ?3 AND row <= ?4 AND operation = ?1
    AND (state IN ('claimed', 'in_doubt') OR remember_until_us > ?2 OR (state = 'completed' AND replay_until_us > ?2))
