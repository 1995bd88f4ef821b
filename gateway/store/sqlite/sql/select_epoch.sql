-- no row of the table: which memory this is
SELECT e.identity, s.token, e.memo, e.generation, e.level FROM epoch AS e, sequence AS s WHERE e.one = 1 AND s.one = 1
