-- claimed | in_doubt | released --complete | prove--> completed: the response body
INSERT INTO response (row, body) VALUES (?, ?)
