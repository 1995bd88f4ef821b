-- no row of the table: how many accepted operations a scope has under an operation name, up to a limit
SELECT count(*) FROM (
    SELECT 1 FROM delivery
    WHERE is_accepted AND service = ?1 AND operation = ?2 AND scope_digest = ?3 AND deliver_until_us > ?4
    LIMIT ?5
) AS found
