-- no row of the table: a kept request under another key, if it is the one that was read
UPDATE request SET key_id = ?, sealed = ? WHERE row = ? AND key_id = ? AND sealed = ?
