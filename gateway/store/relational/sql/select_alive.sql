-- no row of the table: the remembered keys of an operation name, settled, with what their ids are derived from, until when
-- they are kept (NULL: until an attempt or a person ends them), and the key of their fingerprint; of a narrow one the service
-- in place of the digest of its key. Reads every record between the two rows; runs only at a start with another configuration.
SELECT o.id, o.scope_digest, o.key_digest,
    CASE
        WHEN o.state IN ('accepted', 'claimed', 'in_doubt', 'dead_letter') THEN NULL
        WHEN o.state = 'completed' THEN {greatest}(o.replay_until_us, o.remember_until_us)
        ELSE o.remember_until_us
    END,
    coalesce(o.fingerprint_key_id, k.fingerprint_key_id), k.service
FROM operation AS o LEFT JOIN kind AS k ON k.kind = o.kind
WHERE o.{row} > ?3 AND o.{row} <= ?4 AND coalesce(o.operation, k.operation) = ?1
    AND (
        o.state IN ('accepted', 'claimed', 'in_doubt', 'dead_letter')
        OR o.remember_until_us > ?2
        OR (o.state = 'completed' AND o.replay_until_us > ?2)
    )
