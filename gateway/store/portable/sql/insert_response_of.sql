-- claimed | in_doubt --complete--> completed: the response body, if the row was not read
UPDATE operation SET body = ?1 WHERE id = ?2
