-- no row of the table: the body of a response under another key
UPDATE operation SET body = ?1 WHERE id = ?2
