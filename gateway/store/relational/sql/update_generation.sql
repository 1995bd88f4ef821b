-- completed --purge--> tombstone, released | tombstone --erase--> absent: invalidates all earlier copies
UPDATE epoch SET generation = ? WHERE one = 1
