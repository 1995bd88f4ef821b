-- no row of the table: who does these works of upkeep, and until when
SELECT name, holder, until_us FROM turn WHERE name IN (SELECT value FROM json_each(?))
