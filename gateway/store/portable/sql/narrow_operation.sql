-- completed --retire--> tombstone: the record as a narrow row, in the transaction that read it
UPDATE operation SET {narrowed}, body = NULL WHERE id = ?
