-- every row that leaves a record: what the table made of it, inside the transaction that read it
UPDATE operation SET {changed}
WHERE row = ?
