-- no row of the table: which memory this is
SELECT e.identity, e.ceiling, e.memo, e.generation, e.level FROM epoch AS e WHERE e.one = 1
