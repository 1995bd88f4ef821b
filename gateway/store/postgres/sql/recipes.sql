-- What is remembered of each operation name.
SELECT service, operation, recipe, routes, is_current FROM idempotency_gateway.recipe
