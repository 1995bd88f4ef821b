-- no row of the table: the keys of an operation name that are remembered, settled, with what their ids are derived from. It
-- reads every record between the two rows; it is asked only at a start with another configuration.
SELECT id, scope_digest, key_digest FROM operation
WHERE row > ?3 AND row <= ?4 AND operation = ?1
    AND (state IN ('claimed', 'in_doubt') OR remember_until_us > ?2 OR (state = 'completed' AND replay_until_us > ?2))
