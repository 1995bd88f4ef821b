-- What is remembered of these operation names from now on.
INSERT INTO idempotency_gateway.recipe (service, operation, recipe, routes, is_current)
SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[], $4::text[], $5::boolean[])
ON CONFLICT (service, operation) DO UPDATE
SET recipe = excluded.recipe, routes = excluded.routes, is_current = excluded.is_current
