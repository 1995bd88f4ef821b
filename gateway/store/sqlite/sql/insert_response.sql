-- claimed | in_doubt | released --complete | prove--> completed: the body of the answer
INSERT INTO response (row, body) VALUES (?, ?)
