-- every row that leads to completed: the response body
UPDATE operation SET body = ?2 WHERE id = ?1
