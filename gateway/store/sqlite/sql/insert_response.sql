-- every row that leads to completed: the response body
INSERT INTO response (body, row) VALUES (?, {row_of})
