-- no row of the table: an operation name with recipe and routes, as remembered from now on
INSERT INTO recipe (service, operation, recipe, routes, is_current) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (service, operation) DO UPDATE
SET recipe = excluded.recipe, routes = excluded.routes, is_current = excluded.is_current
