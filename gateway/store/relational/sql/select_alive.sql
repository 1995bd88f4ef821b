-- no row of the table: the remembered keys of an operation name, settled, with what their ids are derived from, until when
-- they are kept (NULL: until an attempt or a person ends them), and the key of their fingerprint. Reads every record between
-- the two rows; runs only at a start with another configuration.
SELECT id, scope_digest, key_digest,
    CASE
        WHEN state IN ('accepted', 'claimed', 'in_doubt', 'dead_letter') THEN NULL
        WHEN state = 'completed' THEN {greatest}(replay_until_us, remember_until_us)
        ELSE remember_until_us
    END,
    fingerprint_key_id
FROM operation
WHERE {row} > ?3 AND {row} <= ?4 AND operation = ?1
    AND (
        state IN ('accepted', 'claimed', 'in_doubt', 'dead_letter')
        OR remember_until_us > ?2
        OR (state = 'completed' AND replay_until_us > ?2)
    )
