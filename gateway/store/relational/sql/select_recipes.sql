-- no row of the table: the remembered operation names with recipe and routes
SELECT service, operation, recipe, routes, is_current FROM recipe
