-- completed --retire | purge--> tombstone: delete the body, keep the key
UPDATE operation SET body = NULL WHERE id = ?1
