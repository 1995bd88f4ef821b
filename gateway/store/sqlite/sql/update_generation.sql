-- completed --purge--> tombstone, released | tombstone --erase--> absent: no copy from before counts
UPDATE epoch SET generation = lower(hex(randomblob(16))) WHERE one = 1
