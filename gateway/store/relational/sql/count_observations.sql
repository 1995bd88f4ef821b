-- no row of the table: the observations of a route, or of all, by what was found
SELECT route, verdict, is_refused, count(*), count(CASE WHEN is_repeat THEN 1 END), count(CASE WHEN is_rekeyed THEN 1 END)
FROM observation
WHERE service = ?1 AND (CAST(?2 AS TEXT) IS NULL OR route = ?2)
GROUP BY route, verdict, is_refused
ORDER BY route, verdict, is_refused
