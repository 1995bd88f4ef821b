-- claimed | in_doubt --complete--> completed: the response body, if the row was not read
INSERT INTO response (row, body) SELECT row, ? FROM operation WHERE id = ?
