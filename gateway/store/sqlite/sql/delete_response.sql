-- completed --retire | purge--> tombstone: delete the body, keep the key
DELETE FROM response WHERE row = {row_of}
