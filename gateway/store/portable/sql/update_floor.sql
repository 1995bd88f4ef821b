-- released | tombstone --collect | erase--> absent: the operation's token is not drawn again, in the same transaction
UPDATE epoch SET floor = greatest(floor, ?1) WHERE one = 1
