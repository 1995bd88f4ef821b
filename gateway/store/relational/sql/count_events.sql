-- no row of the table: how many events of a sink wait, up to a limit, and since when the oldest of them does
SELECT count(*), min(since_us) FROM (
    SELECT e.since_us FROM event AS e WHERE e.service = ?1 AND e.sink = ?2 AND NOT e.is_dead LIMIT ?3
) AS found
