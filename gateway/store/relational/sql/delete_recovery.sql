-- no row of the table: the doubt is over
DELETE FROM recovery WHERE id = ?
