-- no row of the table: the store's clock, and between which numbers tokens are drawn
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::BIGINT, e.floor, e.ceiling FROM epoch AS e WHERE e.one = 1
