-- no row of the table: the services whose operations may be here
SELECT DISTINCT service FROM recipe
