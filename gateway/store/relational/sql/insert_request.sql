-- absent | released --accept--> accepted: the encrypted request
INSERT INTO request (row, key_id, sealed) VALUES (?, ?, ?)
