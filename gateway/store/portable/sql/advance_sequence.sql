-- no row of the table: no token up to this one is drawn any more
UPDATE epoch SET floor = greatest(floor, ?1), ceiling = greatest(ceiling, ?1) WHERE one = 1
