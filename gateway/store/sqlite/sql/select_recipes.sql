-- no row of the table: what is remembered of each operation name
SELECT service, operation, recipe, routes, is_current FROM recipe
