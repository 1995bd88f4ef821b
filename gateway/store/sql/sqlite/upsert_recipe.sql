-- no row of the table: how identities are made from now on
INSERT INTO recipe (operation, recipe) VALUES (?, ?) ON CONFLICT (operation) DO UPDATE SET recipe = excluded.recipe
