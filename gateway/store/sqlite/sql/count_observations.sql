-- no row of the table: the observations of a route, or of all, by what was found
SELECT route, verdict, is_refused, count(*), sum(is_repeat), sum(is_rekeyed)
FROM observation
WHERE service = ?1 AND (?2 IS NULL OR route = ?2)
GROUP BY route, verdict, is_refused
ORDER BY route, verdict, is_refused
