-- released | tombstone --collect | erase--> absent
DELETE FROM operation WHERE id = ?
