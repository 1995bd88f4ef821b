-- absent | released --accept--> accepted: the encrypted request
INSERT INTO request (key_id, sealed, row) VALUES (?, ?, {row_of})
