-- every row that leads to completed: the response body
UPDATE operation SET body = ?1 WHERE id = ?2
