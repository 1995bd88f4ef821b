-- every row that leads to completed: the response body
INSERT INTO response (row, body) VALUES (?, ?)
