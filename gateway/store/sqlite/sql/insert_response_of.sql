-- claimed | in_doubt --complete--> completed: the body of the answer, where the row was not read
INSERT INTO response (row, body) SELECT row, ? FROM operation WHERE id = ?
