-- completed --purge--> tombstone, released | tombstone --erase--> absent: invalidates all earlier copies
UPDATE epoch SET generation = lower(hex(randomblob(16))) WHERE one = 1
