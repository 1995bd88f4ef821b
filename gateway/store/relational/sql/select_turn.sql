-- no row of the table: who does a work of upkeep, and until when
SELECT holder, until_us FROM turn WHERE name = ?
