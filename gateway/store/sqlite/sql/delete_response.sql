-- completed --retire | purge--> tombstone: the body goes, the key stays
DELETE FROM response WHERE row = ?
