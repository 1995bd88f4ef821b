-- no row of the table: how many accepted operations a scope has on a route, up to a limit
SELECT count(*) FROM (
    SELECT 1 FROM delivery
    WHERE is_accepted AND service = ?1 AND route = ?2 AND scope_digest = ?3 AND deliver_until_us > ?4
    LIMIT ?5
) AS found
