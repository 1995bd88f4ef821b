-- no row of the table: the body of a response under another key
UPDATE response SET body = ? WHERE row = (SELECT row FROM operation WHERE id = ?)
