-- no row of the table: how many lanes of each route are stopped, and since when the first one is
SELECT route, count(*), min(stopped_us)
FROM (
    SELECT route, stopped_us FROM delivery
    WHERE stopped_us IS NOT NULL AND NOT is_behind AND service = ?
    LIMIT ?
) AS stopped
GROUP BY route
