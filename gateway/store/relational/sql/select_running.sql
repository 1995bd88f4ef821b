-- no row of the table: what the other running gateways serve. A time in the future is from before the clock was set back.
SELECT DISTINCT g.service, o.value FROM gateway AS g, {each of g.operations} AS o
WHERE g.id <> ?1 AND g.seen_us BETWEEN ?2 AND ?3
