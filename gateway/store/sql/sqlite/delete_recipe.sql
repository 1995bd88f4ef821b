-- no row of the table: a recipe that stands under another name now
DELETE FROM recipe WHERE operation = ?
